"""Read and check rubric files, TOML or JSON: the criteria by which a model judges a rollout.

Also finds the rubric files that a task names. Judging is done elsewhere.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import Any, get_args

from benchflow.contracts.reward import Criterion, JudgeRubric, Space
from benchflow.contracts.task import Task
from benchflow.contracts.verifier import JudgeConfig, VerifierStrategy
from benchflow.tasks.layout import is_file
from benchflow.user_files.problems import KeyPath, ProblemError, Problems, format_path
from benchflow.user_files.user_document import UserDocument, read_text
from benchflow.user_files.user_model import KeyFault, make_model

_RESERVED = frozenset({"reward", *get_args(Space)})
"""Names of other numbers in a verifier's result, which no criterion may have as its id."""

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_SCALE_KEYS = {"points": "likert", "min": "numeric", "max": "numeric"}
"""Keys of a criterion that have an effect with one type only."""


def load_rubric(path: Path) -> JudgeRubric:
    """Return the rubric in a file.

    Raises:
        TaskError: The first of the file's errors, of which an unknown key is one.
    """
    problems = Problems()
    rubric = read_rubric(path, problems, strict=True)
    error = problems.first_error
    if error is not None:
        raise error.as_error()
    assert rubric is not None
    return rubric


def read_rubric(path: Path, problems: Problems, *, strict: bool) -> JudgeRubric | None:
    """Return the rubric at `path`; None if it can't be used, with the reasons added to `problems`.

    Args:
        path: A file with the suffix `.json`, or a TOML file.
        problems: Receives what is wrong.
        strict: Report an unknown key as an error; otherwise as a warning, and the key is not used.
    """
    try:
        raw = UserDocument(path, read_text(path), "json" if path.suffix == ".json" else "toml").table
    except ProblemError as error:
        problems.extend([error.problem])
        return None
    return _Reading(path, problems, strict).rubric(raw)


class _Reading:
    """Reads one file into a `JudgeRubric`."""

    def __init__(self, path: Path, problems: Problems, strict: bool) -> None:
        self.path, self.problems, self.strict = path, problems, strict
        self.list_key = "criterion"

    def rubric(self, raw: dict[str, Any]) -> JudgeRubric | None:
        """Return the parsed file as a rubric; None if that adds an error to the problems. Changes `raw`."""
        before = self.problems.first_error
        self._normalise(raw)

        def report(fault: KeyFault) -> None:
            if fault.at == ("criteria",) and not raw["criteria"]:
                fault = KeyFault((), "has no criteria", "write `[[criterion]]` and, below it, a `description`")
            self._error(*fault)

        rubric = make_model(JudgeRubric, raw, report, unknown=self._unknown)
        if rubric is None:
            return None
        for index, criterion in enumerate(rubric.criteria):
            self._check(criterion, ("criteria", index))
        if not any(criterion.weight for criterion in rubric.criteria):
            self._error((), "every criterion has weight 0", "give at least one a positive weight")
        return rubric if self.problems.first_error is before else None

    def _normalise(self, raw: dict[str, Any]) -> None:
        """Bring the list of criteria to its normal name and keys, and give each criterion an id, in place."""
        if "criterion" in raw and "criteria" in raw:
            self._error((), "`criterion` and `criteria` are the same thing", "keep one of them")
            del raw["criterion"]
        if "criteria" in raw:
            self.list_key = "criteria"
        else:
            raw["criteria"] = raw.pop("criterion", [])
        rows = raw["criteria"] if isinstance(raw["criteria"], list) else []
        taken: set[str] = set()
        # Given ids come first, wherever they stand, so that generated ones avoid them.
        tables = [(index, row) for index, row in enumerate(rows) if isinstance(row, dict)]
        for index, row in tables:
            self._alias(row, ("criteria", index))
            self._given_id(row, ("criteria", index), taken)
        for index, row in tables:
            if "id" not in row:
                row["id"] = _take_free_id(_make_slug(_find_label(row)) or f"criterion-{index + 1}", taken)
            self._tell_label(row)

    def _alias(self, row: dict[str, Any], at: KeyPath) -> None:
        if "match_criteria" in row:
            if "description" in row:
                self._error((*at, "match_criteria"), "means the same as `description`", "keep one of them")
            text = row.pop("match_criteria")
            row.setdefault("description", text)

    def _given_id(self, row: dict[str, Any], at: KeyPath, taken: set[str]) -> None:
        """Use a row's `id`, or a `name` that is a valid id, as its id. Report invalid, reserved and duplicate ids."""
        key = next((key for key in ("id", "name") if key in row), None)
        if key is None or not isinstance(row[key], str):
            return
        given = row[key]
        if _ID.fullmatch(given) is None:
            if key == "id":
                hint = "use up to 64 letters, digits, '_', '.' and '-'; a `title` may be any text"
                self._error((*at, key), f"{given!r} can't be an id", hint)
            return
        if key == "name":
            row["id"] = row.pop("name")
        if given in _RESERVED:
            self._error((*at, key), f"{given!r} is the name of another number of the result", "call it otherwise")
        elif given in taken:
            self._error((*at, key), f"two criteria are called {given!r}", "give each an id of its own")
        taken.add(given)

    def _tell_label(self, row: dict[str, Any]) -> None:
        """Put a name or title, which is no id, before the description, so that the judge is given it as well."""
        label = _find_label(row)
        for key in ("name", "title"):
            if isinstance(row.get(key), str):
                del row[key]
        told = row.get("description")
        if label and (told is None or (isinstance(told, str) and label not in told)):
            row["description"] = f"{label}: {told}" if told else label

    def _check(self, criterion: Criterion, at: KeyPath) -> None:
        if not criterion.description.strip():
            self._error((*at, "description"), "is empty", "say what the judge is to look for")
        if criterion.type == "numeric" and criterion.min >= criterion.max:
            message = f"must be above min, which is {criterion.min:g}, not {criterion.max:g}"
            self._error((*at, "max"), message)
        for key, kind in _SCALE_KEYS.items():
            if key in criterion.model_fields_set and criterion.type != kind:
                place = self._key((*at, key))
                self.problems.warn("value", self.path, f"has no effect with type {criterion.type!r}", key=place)
        if criterion.space == "latent":
            self.problems.error(
                "unsupported",
                self.path,
                "nothing scores the space `latent` yet",
                key=self._key((*at, "space")),
                suggestion=f"use one of {', '.join(space for space in get_args(Space) if space != 'latent')}",
            )

    def _unknown(self, fault: KeyFault, _: Any) -> None:
        place = self._key(fault.at)
        if self.strict:
            self.problems.error("unknown-key", self.path, fault.message, key=place, suggestion=fault.remedy)
        else:
            message = f"{fault.message}; it is not used"
            self.problems.warn("unknown-key", self.path, message, key=place, suggestion=fault.remedy)

    def _error(self, at: KeyPath, message: str, suggestion: str | None = None) -> None:
        self.problems.error("value", self.path, message, key=self._key(at) or None, suggestion=suggestion)

    def _key(self, at: KeyPath) -> str:
        """Return a path as the file spells it."""
        return format_path((self.list_key, *at[1:]) if at[:1] == ("criteria",) else at)


def _find_label(row: dict[str, Any]) -> str:
    """Return the title of a criterion, else its name, else an empty text."""
    for key in ("title", "name"):
        if isinstance(row.get(key), str):
            return str(row[key]).strip()
    return ""


def _make_slug(text: str) -> str:
    slug = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:48].strip("-")
    return f"criterion-{slug}" if slug in _RESERVED else slug


def _take_free_id(wanted: str, taken: set[str]) -> str:
    """Return `wanted`, with the first number that makes it unique among `taken` if need be, and add it there."""
    found, number = wanted, 1
    while found in taken:
        number += 1
        found = f"{wanted}-{number}"
    taken.add(found)
    return found


# --- of a task ---------------------------------------------------------------------------------------------


def read_task_rubrics(task: Task, root: Path, problems: Problems) -> dict[str, JudgeRubric]:
    """Return the rubrics by which a task is judged, by their paths as it writes them.

    Args:
        task: The task.
        root: Its directory.
        problems: Receives missing files, and what is wrong with the others.
    """
    found: dict[str, JudgeRubric] = {}
    document = task.verifier_document
    if document is not None and task.verifier_dir is not None:
        _read_strategy_rubric(document.strategy, root / task.verifier_dir, root, problems, found)
    places = [("verifier", task.verifier)]
    places += [(f"steps[{index}].verifier", step.verifier) for index, step in enumerate(task.steps)]
    for at, verifier in places:
        if verifier.type != "llm-judge":
            continue
        judge = verifier.judge or JudgeConfig()
        if judge.rubric_path in found:
            continue
        path = _find_judge_file(judge, task, root)
        if path is None:
            problems.error(
                "not-found",
                root / task.config_file,
                f"there is no {judge.rubric_path!r} in the task",
                key=f"{at}.judge.rubric_path",
                suggestion="write the rubric there, or name its path relative to the task directory",
            )
            continue
        rubric = read_rubric(path, problems, strict=task.layout == "native")
        if rubric is not None:
            found[judge.rubric_path] = rubric
    return found


def _read_strategy_rubric(
    strategy: VerifierStrategy, directory: Path, root: Path, problems: Problems, found: dict[str, JudgeRubric]
) -> None:
    """Read the rubric of an `llm-judge`, or the TOML or JSON criteria of a `reward-kit`, into `found`, by its path.

    The path, as the strategy names it, is relative to the verifier's directory, or else to `root`, the task's. A
    missing rubric is a problem. Criteria in another format, or that are missing, are left to the kit.
    """
    named = {"llm-judge": strategy.rubric, "reward-kit": strategy.criteria}.get(strategy.type)
    if named is None:
        return
    path = next((base / named for base in (directory, root) if _is_inside(root, base / named)), None)
    rubric = None
    if strategy.type == "reward-kit":
        rubric = _read_kit(path, problems) if path is not None and path.suffix in (".toml", ".json") else None
    elif path is None:
        document = directory / "verifier.md"
        problems.error("not-found", document, f"{named!r} is no file of the task", key="verifier.strategies")
    else:
        rubric = read_rubric(path, problems, strict=True)
    if rubric is not None:
        found[named] = rubric


def _is_inside(root: Path, path: Path) -> bool:
    return is_file(path) and path.resolve().is_relative_to(root.resolve())


def _read_kit(path: Path, problems: Problems) -> JudgeRubric | None:
    """Read the criteria of a kit. Problems are warnings only: the kit reads the file itself, which may be no rubric."""
    own = Problems()
    rubric = read_rubric(path, own, strict=False)
    problems.extend(problem.model_copy(update={"severity": "warning"}) for problem in own)
    return rubric


def _find_judge_file(judge: JudgeConfig, task: Task, root: Path) -> Path | None:
    """Return the file of `verifier.judge.rubric_path`, or the same with the suffix `.json`; None if there is none.

    With the default path, the usual places in a native verifier's directory are tried as well.
    """
    names = [PurePosixPath(judge.rubric_path)]
    if judge.rubric_path.endswith(".toml"):
        names.append(names[0].with_suffix(".json"))
    if judge.rubric_path == JudgeConfig().rubric_path and task.verifier_dir not in (None, "tests"):
        own = PurePosixPath(str(task.verifier_dir))
        names += [own / "rubrics" / "verifier.toml", own / "rubric.toml", own / "rubric.json"]
    return next((root / name for name in names if _is_inside(root, root / name)), None)
