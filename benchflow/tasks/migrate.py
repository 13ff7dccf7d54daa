"""Migrate a task from the split to the native layout, in place, without a change of its meaning.

Comments, unknown keys and files are kept. The migration is atomic: the result is read back and compared with the task
before, and reverted if it differs.
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
from benchflow.errors import StoreError, TaskError
from benchflow.tasks.layout import ORACLE_DIRS, VERIFIER_DIRS
from benchflow.tasks.load import load_task
from benchflow.tasks.reward_table import normalise_reward
from benchflow.tasks.schema import TaskTables
from benchflow.tasks.sections import has_reserved_heading
from benchflow.tasks.task_spellings import Spelling, normalise_tables
from benchflow.tasks.text import read_toml
from benchflow.user_files.problems import Problems, format_path
from benchflow.user_files.user_document import read_text
from benchflow.user_files.user_model import take_unknown


class MigrationReport(Model):
    """Result of a migration."""

    path: str
    """Directory of the task."""

    moved: list[tuple[str, str]]
    """Old and new path of each file and directory, relative to the task's."""

    kept: list[str] = []
    """Unknown keys, which were kept."""

    warnings: list[str] = []
    """Possible changes of meaning that the author should look at."""


def migrate_task(path: Path) -> MigrationReport:
    """Turn the split task in the directory `path` into a native one.

    Raises:
        TaskError: The task is native already, has errors, or can't be written as a task.md; it is unchanged then.
        StoreError: A file can't be written; the task is unchanged then.
    """
    if (path / "task.md").exists():
        raise TaskError("is a native task already", file=str(path / "task.md"))
    before = load_task(path)
    moves = list(_list_moves(path))
    _refuse_conflicts(path, moves)
    text, kept = _make_document(path, before)
    sources = [name for name in ("task.toml", "instruction.md") if (path / name).exists()]
    warnings = _carry_out(path, text, moves, sources, before)
    moved = [(name, "task.md") for name in sources] + moves
    return MigrationReport(path=str(path), moved=moved, kept=kept, warnings=warnings)


def _list_moves(root: Path) -> Iterator[tuple[str, str]]:
    """Yield the old and the new path of each verifier's and oracle's directory."""
    steps = root / "steps"
    bases = [""] + [f"steps/{step.name}/" for step in sorted(steps.iterdir())] if steps.is_dir() else [""]
    for base in bases:
        for new, old in (VERIFIER_DIRS, ORACLE_DIRS):
            if (root / base / old).is_dir():
                yield f"{base}{old}", f"{base}{new}"


def _refuse_conflicts(root: Path, moves: list[tuple[str, str]]) -> None:
    """Raise `TaskError` for existing targets, and for files that mean something in a native task only."""
    for old, new in moves:
        if (root / new).exists():
            raise TaskError(
                f"exists, so {old}/ can't be moved there",
                file=str(root / new),
                remedy=f"remove {old}/ or {new}/",
            )
    for name in ("prompts", "tests/verifier.md"):
        if (root / name).exists():
            raise TaskError(
                "would get a meaning in a native task that it doesn't have now",
                file=str(root / name),
                remedy="rename it",
            )
    instruction = root / "instruction.md"
    if instruction.is_file() and has_reserved_heading(read_text(instruction)):
        raise TaskError(
            "has a heading that is reserved in task.md",
            file=str(instruction),
            remedy="rename the heading (`## prompt`, `## role:…`, `## scene:…`, `## user-persona`)",
        )


def _make_document(root: Path, task: Task) -> tuple[str, list[str]]:
    """Return the text of task.md, and the unknown keys that it carries in `benchflow.compat_extra`."""
    file = root / "task.toml"
    spelling = Spelling(file, Problems())
    raw = normalise_tables(read_toml(file), spelling, native=False)
    normalise_reward(raw, spelling)
    extra: dict[str, Any] = {}
    for fault, value in take_unknown(TaskTables, raw):
        extra[format_path(fault.at)] = copy.deepcopy(value)
    _move_rubric(raw)
    if extra:
        raw["benchflow"] = {"compat_extra": extra}
    frontmatter = yaml.safe_dump(raw, sort_keys=False, allow_unicode=True, width=100) if raw else ""
    comments = "".join(f"{line}\n" for line in _read_comments(file))
    body = f"\n{task.instruction}\n" if task.instruction else ""
    return f"---\n{comments}{frontmatter}---\n{body}", list(extra)


def _move_rubric(raw: dict[str, Any]) -> None:
    """Adapt the paths of judges' rubrics below `tests/`, which becomes `verifier/`."""
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


def _read_comments(file: Path) -> list[str]:
    """Return the comments of a TOML file in order. They are kept because licences and canaries are among them."""
    found = (match[1] for match in _TOML_COMMENT.finditer(read_text(file)))
    return [comment.rstrip() for comment in found if comment]


def _carry_out(root: Path, text: str, moves: list[tuple[str, str]], sources: list[str], before: Task) -> list[str]:
    """Write task.md, move the directories, remove the source files, and return the warnings.

    All of it is reverted, and the error raised, if a step fails or is interrupted, or if the task's meaning changes.

    Args:
        root: Directory of the task.
        text: Content of task.md.
        moves: Old and new path of each directory.
        sources: Names of the files that task.md replaces.
        before: The task before.
    """
    done: list[tuple[Path, Path]] = []
    document = root / "task.md"
    removed: dict[Path, bytes] = {}
    try:
        document.write_text(text, encoding="utf-8")
        for old, new in moves:
            (root / old).rename(root / new)
            done.append((root / old, root / new))
        if _dump_meaning(load_task(root)) != _dump_meaning(before):
            raise TaskError("can't be written as a task.md that means the same", file=str(root / "task.toml"))
        warnings = _find_warnings(root, moves, before)
        for name in sources:
            removed[root / name] = (root / name).read_bytes()
            (root / name).unlink()
        return warnings
    except BaseException as error:
        for path, content in removed.items():
            path.write_bytes(content)
        for old_path, new_path in reversed(done):
            new_path.rename(old_path)
        document.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise StoreError(f"cannot be written: {error.strerror or error}", file=str(root)) from error
        raise


def _dump_meaning(task: Task) -> dict[str, Any]:
    """Return a task's data for comparison, without the layout and the paths of its parts."""
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


def _find_warnings(root: Path, moves: list[tuple[str, str]], before: Task) -> list[str]:
    """Return warnings about possible changes of meaning: directory and user of scripts, mentions of /solution."""
    found = []
    dockerfile = ""
    if before.dockerfile:
        # Images are built of it by tools that read other encodings, too.
        dockerfile = read_regular(root / before.dockerfile, MAX_TEXT, is_cut=True).decode(errors="replace")
    named = _WORKDIR.search(dockerfile)
    if before.sandbox.workdir is None and named is None:
        found.append(
            "neither the task nor its Dockerfile names a workspace; if its image does not either, test.sh and solve.sh "
            "started in /, and start in /app or /root now: name one, or begin them with `cd /`"
        )
    users = _USER.findall(dockerfile)
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
