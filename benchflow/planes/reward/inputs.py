"""Which files a verifier's strategy reads, and where they lie among what was kept of a rollout."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from benchflow.confined import ConfinedPath
from benchflow.contracts.reward import Evidence
from benchflow.contracts.task import Task
from benchflow.contracts.verifier import JudgeConfig, VerifierConfig, VerifierStrategy
from benchflow.errors import VerifierError

_ARTIFACTS = "/logs/artifacts"


def strategy_of(task: Task, config: VerifierConfig) -> VerifierStrategy:
    """How a verifier scores, whether its document says so, its table, or nothing but a `test.sh`."""
    if config.type == "llm-judge":
        judge = config.judge or JudgeConfig()
        told = f"What is to be judged is of the type {judge.input_type!r}."
        return VerifierStrategy(
            type="llm-judge",
            rubric=judge.rubric_path,
            model=judge.model,
            input_dir=judge.input_dir,
            context=f"{judge.context}\n\n{told}".strip(),
        )
    return task.verifier_document.strategy if task.verifier_document else VerifierStrategy(type="script")


def judged_directory(strategy: VerifierStrategy) -> str:
    """Where in the sandbox a rubric's judge finds what it judges."""
    return strategy.input_dir or JudgeConfig().input_dir


def find_inputs(paths: Sequence[str], evidence: Evidence, step: str | None) -> dict[str, ConfinedPath]:
    """Where each declared file or directory lies, by the path as written.

    A relative path is one of the results: of the step's own, else of the rollout's; an absolute one is the sandbox's.
    Raises `VerifierError` naming all that are not there. No symbolic link is followed on the way to one.
    """
    found = {path: place for path in paths if (place := _find(path, evidence, step)) is not None}
    if missing := [path for path in paths if path not in found]:
        raise VerifierError(
            f"there is no {', no '.join(missing)} of this rollout",
            file=str(evidence.directory) if evidence.directory else None,
            key="inputs",
            remedy="name what the agent leaves, absolute as in the sandbox, or relative to the rollout's results",
        )
    return found


def _find(path: str, evidence: Evidence, step: str | None) -> ConfinedPath | None:
    for root, relative in _candidates(path, evidence, step):
        parts = [part for part in PurePosixPath(relative).parts if part != "/"]
        if ".." in parts:
            raise VerifierError(
                f"{path!r} leads out of the rollout", key="inputs", remedy="name a path without `..` in it"
            )
        place = ConfinedPath(root, "/".join(parts) or ".")
        status = place.status()
        if status is not None and not stat.S_ISLNK(status.st_mode):
            return place
    return None


def _candidates(path: str, evidence: Evidence, step: str | None) -> Iterator[tuple[Path, str]]:
    directory = evidence.directory
    if not path.startswith("/"):
        if directory is not None and step is not None:
            yield directory / "steps" / step, path
        if directory is not None:
            yield directory, path
        return
    if evidence.evidence is not None:
        yield evidence.evidence / "inputs", path
    if directory is not None and path.startswith(f"{_ARTIFACTS}/"):
        yield directory / "artifacts", path.removeprefix(_ARTIFACTS)
