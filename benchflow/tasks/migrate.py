"""A task in the split layout becomes a native one, in place, and means the same afterwards.

Comments, unknown keys and files are kept. Either the whole migration happens or none of it: the result is
read back and compared with what was there before, and undone if it differs.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from benchflow.confined import MAX_TEXT, read_regular
from benchflow.contracts.base import Model
from benchflow.contracts.images import user_of
from benchflow.contracts.task import Task
from benchflow.errors import StoreError, TaskError, TaskParseError, TaskValueError
from benchflow.tasks.layout import ORACLE_DIRS, VERIFIER_DIRS
from benchflow.tasks.load import load_task
from benchflow.tasks.normalise import Spelling, normalise_tables
from benchflow.tasks.problems import KeyPath, Problems, dotted
from benchflow.tasks.reward_table import normalise_reward
from benchflow.tasks.schema import TaskTables, take_unknown
from benchflow.tasks.sections import has_reserved_heading
from benchflow.tasks.text import read_text, read_toml


class MigrationReport(Model):
    """What was done. moved: old and new path of files and directories. kept: keys that nothing here knows."""

    path: str
    moved: list[tuple[str, str]]
    kept: list[str] = []
    warnings: list[str] = []


def migrate_task(path: Path) -> MigrationReport:
    """Turn the split task in `path` into a native one. Raises `TaskError`, leaving everything as it was."""
    if (path / "task.md").exists():
        raise TaskValueError("is a native task already", file=str(path / "task.md"))
    before = load_task(path)
    moves = list(_moves(path))
    _refuse_conflicts(path, moves)
    text, kept = _document(path, before)
    _carry_out(path, text, moves, before)
    sources = [("task.toml", "task.md")]
    if (path / "instruction.md").exists():
        sources.append(("instruction.md", "task.md"))
    for name, _ in sources:
        (path / name).unlink()
    return MigrationReport(path=str(path), moved=sources + moves, kept=kept, warnings=_warnings(path, moves, before))


def _moves(root: Path) -> Iterator[tuple[str, str]]:
    steps = root / "steps"
    bases = [""] + [f"steps/{step.name}/" for step in sorted(steps.iterdir())] if steps.is_dir() else [""]
    for base in bases:
        for new, old in (VERIFIER_DIRS, ORACLE_DIRS):
            if (root / base / old).is_dir():
                yield f"{base}{old}", f"{base}{new}"


def _refuse_conflicts(root: Path, moves: list[tuple[str, str]]) -> None:
    for old, new in moves:
        if (root / new).exists():
            raise TaskValueError(
                f"exists, so {old}/ can't be moved there",
                file=str(root / new),
                remedy=f"remove {old}/ or {new}/",
            )
    for name in ("prompts", "tests/verifier.md"):
        if (root / name).exists():
            raise TaskValueError(
                "would get a meaning in a native task that it doesn't have now",
                file=str(root / name),
                remedy="rename it",
            )
    instruction = root / "instruction.md"
    if instruction.is_file() and has_reserved_heading(read_text(instruction)):
        raise TaskValueError(
            "has a heading that is reserved in task.md",
            file=str(instruction),
            remedy="rename the heading (`## prompt`, `## role:…`, `## scene:…`, `## user-persona`)",
        )


def _document(root: Path, task: Task) -> tuple[str, list[str]]:
    """The text of task.md, and the keys that only travel along."""
    file = root / "task.toml"
    spelling = Spelling(file, Problems())
    raw = normalise_tables(read_toml(file), spelling, native=False)
    normalise_reward(raw, spelling)
    extra: dict[str, Any] = {}

    def keep(at: KeyPath, key: str, value: Any, known: list[str]) -> None:
        extra[dotted((*at, key))] = copy.deepcopy(value)

    take_unknown(TaskTables, raw, (), keep)
    _move_rubric(raw)
    if extra:
        raw["benchflow"] = {"compat_extra": extra}
    frontmatter = yaml.safe_dump(raw, sort_keys=False, allow_unicode=True, width=100) if raw else ""
    comments = "".join(f"{line}\n" for line in _comments(file))
    body = f"\n{task.instruction}\n" if task.instruction else ""
    return f"---\n{comments}{frontmatter}---\n{body}", list(extra)


def _move_rubric(raw: dict[str, Any]) -> None:
    """A judge's rubric moves with its directory."""
    verifiers = [raw.get("verifier", {})] + [step.get("verifier", {}) for step in raw.get("steps", [])]
    for verifier in verifiers:
        if verifier.get("type") != "llm-judge" and "judge" not in verifier:
            continue
        judge = verifier.setdefault("judge", {})
        rubric = str(judge.get("rubric_path", "tests/rubric.toml"))
        if rubric.startswith("tests/"):
            judge["rubric_path"] = "verifier/" + rubric.removeprefix("tests/")
    for func in raw.get("reward", {}).get("funcs", []):
        named = func.get("options", {}).get("rubric")
        if isinstance(named, str) and named.startswith("tests/"):
            func["options"]["rubric"] = "verifier/" + named.removeprefix("tests/")


_TOML_COMMENT = re.compile(
    r'"""(?:\\.|[^\\])*?"""(?:"{0,2})'
    r"|'''.*?'''(?:'{0,2})"
    r'|"(?:\\.|[^"\\\n])*"'
    r"|'[^'\n]*'"
    r"|(#[^\n]*)",
    re.DOTALL,
)


def _comments(file: Path) -> list[str]:
    """Every comment of the TOML file, in order: licences and canaries live there."""
    found = (match[1] for match in _TOML_COMMENT.finditer(read_text(file)))
    return [comment.rstrip() for comment in found if comment]


def _carry_out(root: Path, text: str, moves: list[tuple[str, str]], before: Task) -> None:
    done: list[tuple[Path, Path]] = []
    document = root / "task.md"
    try:
        document.write_text(text, encoding="utf-8")
        for old, new in moves:
            (root / old).rename(root / new)
            done.append((root / old, root / new))
        if _meaning(load_task(root)) != _meaning(before):
            raise TaskParseError("can't be written as a task.md that means the same", file=str(root / "task.toml"))
    except (OSError, TaskError) as error:
        for old_path, new_path in reversed(done):
            new_path.rename(old_path)
        document.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise StoreError(f"cannot be written: {error.strerror or error}", file=str(root)) from error
        raise


def _meaning(task: Task) -> dict[str, Any]:
    """All of a task but where its parts lie."""
    data = task.model_dump(exclude={"layout", "config_file", "verifier_dir", "oracle_dir"})
    for files in data["step_files"].values():
        for part in ("verifier_dir", "oracle_dir"):
            files[part] = files[part] is not None
    for verifier in [data["verifier"], *(step["verifier"] for step in data["steps"])]:
        verifier.pop("judge")
    data["rubrics"] = list(data["rubrics"].values())
    return data


_WORKDIR = re.compile(r"^\s*WORKDIR\s", re.M | re.I)


_USER = re.compile(r"^\s*USER\s+(\S+)", re.M | re.I)


def _warnings(root: Path, moves: list[tuple[str, str]], before: Task) -> list[str]:
    """Return what may mean something else now: where and as whom scripts start, who names the old oracle."""
    found = []
    named = _WORKDIR.search(read_text(root / before.dockerfile)) if before.dockerfile else None
    if before.sandbox.workdir is None and named is None:
        found.append(
            "neither the task nor its Dockerfile names a workspace; if its image does not either, test.sh and solve.sh "
            "started in /, and start in /app or /root now: name one, or begin them with `cd /`"
        )
    users = _USER.findall(read_text(root / before.dockerfile)) if before.dockerfile else []
    if users and (user := user_of(users[-1])) and before.verifier.user is None:
        found.append(
            f"the Dockerfile's USER {user} ran test.sh and solve.sh, and root does now: name it in verifier.user"
        )
    if any(table.user is not None for table in (before.agent, *(step.agent for step in before.steps))):
        found.append("agent.user ran solve.sh and a step's setup.sh, and root does now")
    for old, new in moves:
        for path in sorted((root / new).rglob("*")):
            if (
                old.endswith("solution")
                and path.is_file()
                and b"/solution" in read_regular(path, MAX_TEXT, is_cut=True)
            ):
                name = path.relative_to(root)
                found.append(f"{name} names /solution; in a native task the oracle is at /oracle")
    return found
