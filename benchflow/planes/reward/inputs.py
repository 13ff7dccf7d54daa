"""A task's verifier and its strategy, with the locations of their input files in a rollout's evidence and results."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from benchflow.confined import ConfinedPath
from benchflow.contracts.reward import Evidence
from benchflow.contracts.task import Task
from benchflow.contracts.verifier import JudgeConfig, VerifierConfig, VerifierStrategy
from benchflow.errors import VerifierError

ARTIFACTS_DIRECTORY = "/logs/artifacts"
"""Directory of every sandbox whose content is an artifact, even if the task does not declare it."""


def find_config(task: Task, step: str | None) -> VerifierConfig:
    """Return the verifier configuration of a step; None for the only one. Raise `VerifierError` for an unknown step."""
    if step is None:
        return task.verifier
    for one in task.steps:
        if one.name == step:
            return one.verifier
    raise VerifierError(
        f"the task has no step {step!r}",
        file=task.config_file,
        key="steps",
        remedy="score by a task with the steps that were run",
    )


def resolve_strategy(task: Task, config: VerifierConfig) -> VerifierStrategy:
    """Return the strategy of a verifier: of its table if that is an LLM judge, else of its document, else `test.sh`."""
    if config.type == "llm-judge":
        judge = config.judge or JudgeConfig()
        input_type = f"What is to be judged is of the type {judge.input_type!r}."
        return VerifierStrategy(
            type="llm-judge",
            rubric=judge.rubric_path,
            model=judge.model,
            input_dir=judge.input_dir,
            context=f"{judge.context}\n\n{input_type}".strip(),
        )
    return task.verifier_document.strategy if task.verifier_document else VerifierStrategy(type="script")


def get_judged_directory(strategy: VerifierStrategy) -> str:
    """Return the directory in the sandbox whose files a rubric's judge reads."""
    return strategy.input_dir or JudgeConfig().input_dir


def find_inputs(paths: Sequence[str], evidence: Evidence, step: str | None) -> dict[str, ConfinedPath]:
    """Return the location on this host of each declared file or directory, by its path as written.

    Symbolic links are not followed.

    Args:
        paths: Absolute paths in the sandbox, or relative ones in the results of the step, else of the rollout.
        evidence: Evidence of the rollout.
        step: Name of the step; None if the task has only one.

    Raises:
        VerifierError: Some do not exist (all of them are named), or a path has a `..`.
    """
    found = {path: place for path in paths if (place := _find_input(path, evidence, step)) is not None}
    if missing := [path for path in paths if path not in found]:
        raise VerifierError(
            f"there is no {', no '.join(missing)} of this rollout",
            file=str(evidence.directory) if evidence.directory else None,
            key="inputs",
            remedy="name what the agent leaves, absolute as in the sandbox, or relative to the rollout's results",
        )
    return found


def _find_input(path: str, evidence: Evidence, step: str | None) -> ConfinedPath | None:
    for root, relative in _list_candidates(path, evidence, step):
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


def _list_candidates(path: str, evidence: Evidence, step: str | None) -> Iterator[tuple[Path, str]]:
    """Yield the places where a declared path may be, the preferred one first: a directory, and the path below it."""
    directory = evidence.directory
    if not path.startswith("/"):
        if directory is not None and step is not None:
            yield directory / "steps" / step, path
        if directory is not None:
            yield directory, path
        return
    if evidence.evidence is not None:
        yield evidence.evidence / "inputs", path
    if directory is not None and path.startswith(f"{ARTIFACTS_DIRECTORY}/"):
        yield directory / "artifacts", path.removeprefix(ARTIFACTS_DIRECTORY)
