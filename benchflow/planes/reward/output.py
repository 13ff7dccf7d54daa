"""The output space: reward functions that score the outcome of an agent's work.

Tests and programs run in the world that the agent left; texts and judges read the evidence that was captured of it.
"""

from __future__ import annotations

import json
import os
import posixpath
import re
import shlex
import stat
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

from benchflow.confined import ConfinedPath
from benchflow.contracts.reward import (
    Judge,
    JudgeRubric,
    JudgeSettings,
    RewardEvent,
    RolloutNode,
    Space,
    VerifyResult,
    Workbench,
)
from benchflow.contracts.sandbox import SandboxExecResult
from benchflow.errors import RewardFuncError, UnsafePathError, VerifierError, VerifierTimeoutError
from benchflow.paths import RolloutPaths
from benchflow.planes.reward.aggregate import require_scalar
from benchflow.planes.reward.inputs import find_inputs
from benchflow.planes.reward.judge import (
    JudgedDocument,
    Material,
    ModelJudge,
    find_credential,
    judge_rubric,
    list_documents,
)
from benchflow.planes.reward.judge.model_judge import JudgeByKey
from benchflow.stored_files import read_stored

MAX_TEXT = 1024 * 1024
"""Maximum size, in bytes, of a file that is matched."""

_EXCERPT = 200
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_NOT_RUN = frozenset({126, 127})
"""Exit statuses of a shell that cannot run a command: not executable, not found."""

_OPTIONS = ConfigDict(extra="forbid")


def _make_event(value: float, source: str, meta: dict[str, Any]) -> RewardEvent:
    return RewardEvent(space="output", value=value, source=source, ts=datetime.now(UTC), meta=meta)


def _require_workbench(node: RolloutNode) -> Workbench:
    """Return the node's workbench. Raise `RewardFuncError` if it has none."""
    if node.rollout.workbench is None:
        raise RewardFuncError(
            "the world that the agent left is not there to run anything in",
            file=str(node.rollout.directory) if node.rollout.directory else None,
            remedy="run the job with `--keep workspace`, and score it then",
        )
    return node.rollout.workbench


# --- tests ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, config=_OPTIONS)
class TestRewardFunc:
    """Reward function: 1 if the task's own tests pass, else 0."""

    threshold: float = 1.0
    """Lowest reward of the task's verifier that counts as a pass."""

    space: ClassVar[Space] = "output"
    # Keeps pytest from collecting this class for its name.
    __test__: ClassVar[bool] = False

    async def score(self, node: RolloutNode) -> RewardEvent:
        """Run the task's verifier, at most once, and return 1 or 0.

        Raises:
            RewardFuncError: There is no world to run it in, or it gave no reward.
            RewardScalarError: It reported several keys without a scalar.
        """
        result = await _require_workbench(node).tests()
        require_scalar(result, "the function `tests`")
        if result.reward is None:
            raise RewardFuncError(f"the tests gave no reward: {result.error or 'they did not say why'}")
        return _make_event(
            float(result.reward >= self.threshold), "tests", {"reward": result.reward, "threshold": self.threshold}
        )


# --- texts ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, config=_OPTIONS)
class StringMatchRewardFunc:
    """Reward function: 1 if a text matches the expected one, else 0. A missing file does not match."""

    expected: str
    """Expected text, or regular expression."""

    path: str | None = Field(default=None, min_length=1)
    """File to match, absolute or relative to the workspace; None for the agent's answer."""

    match: Literal["exact", "contains", "regex"] = "exact"
    """Kind of match. `regex` is searched for anywhere in the text."""

    ignore_case: bool = False
    strip: bool = True
    """Whether white space at both ends of either text is ignored; no effect on `regex`."""

    space: ClassVar[Space] = "output"

    @model_validator(mode="after")
    def _compile(self) -> StringMatchRewardFunc:
        if self.match == "regex":
            try:
                re.compile(self.expected)
            except re.error as error:
                raise ValueError(f"`expected` is no regular expression: {error}") from error
        return self

    def sandbox_inputs(self, workspace: str) -> tuple[str, ...]:
        """Return the absolute paths of the files of the sandbox that are read."""
        return (posixpath.normpath(posixpath.join(workspace, self.path)),) if self.path else ()

    async def score(self, node: RolloutNode) -> RewardEvent:
        """Match the text and return 1 or 0. Raise `VerifierError` if the file was not captured, or is too large."""
        if self.path is None:
            text: str | None = node.answer
        else:
            [place] = self.sandbox_inputs(node.rollout.workspace)
            content = await _read_content(node, place)
            text = None if content is None else content.decode("utf-8", "replace")
        read = {"path": self.path} if self.path else {}
        if text is None:
            return _make_event(0.0, "string-match", read | {"missing": True})
        return _make_event(float(self._matches(text)), "string-match", read | {"text": text.strip()[:_EXCERPT]})

    def _matches(self, text: str) -> bool:
        if self.match == "regex":
            return re.search(self.expected, text, re.IGNORECASE if self.ignore_case else 0) is not None
        expected = self.expected
        if self.strip:
            text, expected = text.strip(), expected.strip()
        if self.ignore_case:
            text, expected = text.casefold(), expected.casefold()
        return text == expected if self.match == "exact" else expected in text


async def _read_content(node: RolloutNode, path: str) -> bytes | None:
    """Return a file of the sandbox as the agent left it, by its absolute path; None if it did not exist.

    Raise `VerifierError` if neither a copy nor the world was retained.
    """
    rollout = node.rollout
    if rollout.evidence is not None:
        found = _read_copy(rollout.evidence / "inputs", path.lstrip("/"))
        if found is not None or _was_missing(rollout.evidence, path):
            return found
    error: VerifierError = RewardFuncError(
        f"{path} was not kept",
        file=str(rollout.directory) if rollout.directory else None,
        remedy="declare it as an artifact of the task, or run the job with `--keep workspace`, and score it then",
    )
    if rollout.workbench is not None:
        try:
            return await rollout.workbench.read(path, limit=MAX_TEXT)
        except VerifierError as not_kept:
            error = not_kept
    if rollout.directory is not None:
        found = _read_copy(rollout.directory / "artifacts", path.removeprefix("/logs/artifacts/").lstrip("/"))
        if found is not None:
            return found
    raise error


def _read_copy(root: Path, relative: str) -> bytes | None:
    """Return a regular file below a directory with files of an agent; None if there is none, or it is a link.

    Raise `RewardFuncError` for a directory or a larger file than `MAX_TEXT`.
    """
    place = ConfinedPath(root, relative)
    status = place.status()
    if status is None or stat.S_ISLNK(status.st_mode):
        return None
    try:
        return place.read(MAX_TEXT)
    except UnsafePathError as error:
        remedy = f"name a file of at most {MAX_TEXT} bytes"
        raise RewardFuncError(error.message, file=str(place), remedy=remedy) from error


def _was_missing(evidence: Path, path: str) -> bool:
    """Return whether `store_inputs` has recorded that the file did not exist in the sandbox."""
    try:
        notes = json.loads(read_stored(evidence / "inputs.json"))
    except FileNotFoundError:
        return False
    return f"{path} is not there" in str(notes.get(path))


# --- programs -------------------------------------------------------------------------------------------


@dataclass(frozen=True, config=_OPTIONS)
class CodeExecRewardFunc:
    """Reward function: the result of a program that runs in the workspace once the agent has finished."""

    code: str | None = None
    """Script to run: by its `#!` line if there is no `command`, else by the command (default `python3`)."""

    command: str | tuple[str, ...] | None = None
    """Shell command; without `code` it is the program."""

    files: dict[str, str] = Field(default_factory=dict)
    """Texts to write before, by path, absolute or relative to the workspace."""

    env: dict[str, str] = Field(default_factory=dict)
    timeout_sec: float = Field(default=60.0, gt=0)
    result: Literal["exit", "stdout"] = "exit"
    """`exit`: 1 for exit status 0, else 0. `stdout`: the number in [0, 1] in its last line, for exit status 0."""

    space: ClassVar[Space] = "output"

    @model_validator(mode="after")
    def _require_program(self) -> CodeExecRewardFunc:
        if not self.code and not self.command:
            raise ValueError("runs nothing: give `code` or `command`")
        return self

    async def score(self, node: RolloutNode) -> RewardEvent:
        """Run the program, once for the same options, and return its result.

        Raises:
            VerifierTimeoutError: It did not finish in time.
            RewardFuncError: There is no world to run it in, it could not be run, or its output has no such number.
        """
        workbench = _require_workbench(node)
        options = json.dumps([self.code, self.command, self.files, self.env], sort_keys=True)
        key = f"exec-{sha256(options.encode()).hexdigest()[:16]}"
        script = f"/tmp/benchflow-{key}"
        files = {posixpath.join(node.rollout.workspace, path): text.encode() for path, text in self.files.items()}
        if self.code:
            files[script] = self.code.encode()
        done = await workbench.run(
            key, self._make_argv(script), files=files, env=self.env, timeout_sec=self.timeout_sec
        )
        meta = {"exit_code": done.return_code, "stdout": done.stdout[-_EXCERPT:]}
        return _make_event(self._read_value(done), "code-exec", meta)

    def _make_argv(self, script: str) -> list[str]:
        """Return the argv of the program; `script` is the path of `code` in the sandbox."""
        command = self.command if isinstance(self.command, str) or self.command is None else shlex.join(self.command)
        if not self.code:
            return ["sh", "-c", command or ""]
        if command is None and self.code.startswith("#!"):
            return ["sh", "-c", 'chmod +x "$0" && exec "$0"', script]
        return ["sh", "-c", f'{command or "python3"} "$0"', script]

    def _read_value(self, done: SandboxExecResult) -> float:
        """Return the reward of the program's result, or raise as `score` does."""
        tail = (done.stderr or done.stdout)[-4000:]
        if done.timed_out:
            raise VerifierTimeoutError(
                f"the program did not finish in {self.timeout_sec:g} s", remedy="raise timeout_sec", log_tail=tail
            )
        if done.return_code in _NOT_RUN:
            raise RewardFuncError(
                "the program could not be run", remedy="name one that the task's image has", log_tail=tail
            )
        if self.result == "exit":
            return float(done.return_code == 0)
        if done.return_code != 0:
            raise RewardFuncError(f"the program ended with exit status {done.return_code}", log_tail=tail)
        last = done.stdout.rstrip().rpartition("\n")[2].strip()
        if not _NUMBER.fullmatch(last) or not 0 <= float(last) <= 1:
            raise RewardFuncError(f"the program's last line is {last[:80]!r}", remedy="print a number from 0 to 1")
        return float(last)


# --- judges ---------------------------------------------------------------------------------------------


def _normalize_rubric(given: object) -> object:
    """Return a rubric as a table: a list is its criteria, a string a criterion's description; missing ids are numbers.

    Raise `ValueError` for a path: the file was not read.
    """
    if isinstance(given, str | Path):
        raise ValueError("names a file that was not read: give the rubric itself, or benchflow.LLMJudgeRewardFunc")
    table = {"criteria": given} if isinstance(given, list | tuple) else given
    if not isinstance(table, dict) or not isinstance(table.get("criteria"), list | tuple):
        return table
    rows = [{"description": row} if isinstance(row, str) else row for row in table["criteria"]]
    rows = [{"id": f"criterion-{n}"} | row if isinstance(row, dict) else row for n, row in enumerate(rows, 1)]
    return table | {"criteria": rows}


Rubric = Annotated[JudgeRubric, BeforeValidator(_normalize_rubric)]


@dataclass(frozen=True, config=_OPTIONS)
class ModelJudgeRewardFunc:
    """Reward function: the score that a model gives to the agent's work by a rubric, in [0, 1]."""

    rubric: Rubric
    """A `JudgeRubric`, or its criteria as strings or tables."""

    prompt: str = ""
    """Further information for the judge."""

    inputs: tuple[str, ...] = ()
    """Files to show besides the agent's answer: absolute paths in the sandbox, or relative ones in the rollout's
    results. Without any, all captured inputs.
    """

    model: str | None = None
    """Model to judge; None for the rubric's, or the rollout's."""

    base_url: str | None = None
    """Base URL of a model endpoint, which is then used in place of the rollout's judge."""

    credential: str | None = None
    """Name of the variable with the API key, for a judge that the rollout does not bring."""

    name: str = "llm-judge"
    """Source of its events."""

    space: ClassVar[Space] = "output"

    def sandbox_inputs(self, workspace: str) -> tuple[str, ...]:
        """Return the absolute paths of the files of the sandbox that are read."""
        return tuple(path for path in self.inputs if path.startswith("/"))

    async def score(self, node: RolloutNode) -> VerifyResult:
        """Ask the judge and return its score, with an item for each criterion.

        Raises:
            VerifierError: An input is missing, or there is nothing to judge.
            JudgeError: The model gives no usable answer, or cannot be asked.
        """
        result = await judge_rubric(
            self.rubric,
            Material(self._list_documents(node), node.rollout.task, node.rollout.instruction, self.prompt),
            judge=self._make_judge(node),
            model=self.model,
            now=datetime.now(UTC),
            source=self.name,
        )
        return result.model_copy(update={"space": "output"})

    def _make_judge(self, node: RolloutNode) -> Judge:
        """Return the rollout's judge, or one of its own if it has a `base_url` or the rollout brings none."""
        rollout = node.rollout
        if rollout.judge is not None and self.base_url is None:
            return rollout.judge
        if rollout.directory is None:
            raise RewardFuncError(
                "there is nowhere to write down what the judge says", remedy="give the node's Evidence a directory"
            )
        settings = JudgeSettings(model=self.model, base_url=self.base_url, credential=self.credential)
        # In a job only the secrets that its submitter named: the worker's environment may hold other keys.
        value = rollout.judge.value if isinstance(rollout.judge, JudgeByKey) else os.environ.get
        key = value(find_credential(settings, self.rubric.judge.model))
        place = rollout.evidence.parent if rollout.evidence is not None else rollout.directory
        return ModelJudge(settings, key, RolloutPaths(place).judge())

    def _list_documents(self, node: RolloutNode) -> list[JudgedDocument]:
        """Return the documents for the judge: the answer and the inputs. Raise `RewardFuncError` if there are none."""
        rollout = node.rollout
        found = [JudgedDocument("the agent's answer", node.answer)] if node.answer else []
        if self.inputs:
            parent = rollout.evidence.parent if rollout.evidence else None
            # The evidence of the only step of a task lies in the rollout's own directory.
            step = parent.name if parent and parent != rollout.directory else None
            for path, place in find_inputs(self.inputs, rollout, step).items():
                below = path.rstrip("/") + "/" if place.is_directory() else path
                found += list_documents(place, prefix=below)
        elif rollout.evidence is not None:
            found += list_documents(ConfinedPath(rollout.evidence / "inputs"), prefix="/")
        if not found:
            raise RewardFuncError(
                "there is nothing to judge: the agent said nothing, and no file of its was kept",
                remedy="name what the judge should see: inputs: [/app/report.md]",
            )
        return found
