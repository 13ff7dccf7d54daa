"""`Skills`: score which of its skills an agent used, changed or left unchanged."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass as plain_dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar

import yaml
from pydantic import ConfigDict, model_validator
from pydantic.dataclasses import dataclass

from benchflow.contracts.reward import RewardEvent, RolloutNode, Space, VerifyResult
from benchflow.errors import RewardFuncError
from benchflow.planes.reward.action.tool_calls import ToolCall, list_calls
from benchflow.planes.reward.memory.memory_capture import MemoryCapture, read_memory
from benchflow.planes.reward.memory.memory_difference import MemoryChange, diff_memory
from benchflow.planes.reward.memory.memory_files import format_changes, require_captured
from benchflow.planes.reward.memory.path_patterns import (
    Place,
    get_fixed_part,
    has_wildcards,
    is_below,
    make_absolute,
    matches,
)

_FRONT = re.compile(r"---[ \t]*\n(.*?\n)---[ \t]*(?:\n|\Z)", re.DOTALL)
_NAME = re.compile(r"^name:.{1,300}$", re.MULTILINE)
_HOME = re.compile(r"/(?:~|\$HOME|\$\{HOME\})(?=/|\Z)")
_SKILL_TOOL = re.compile(r"(?!.*(?:create|update|edit|write|delete|remove|list|search|install)).*skill", re.IGNORECASE)
_NAMING = ("skill", "skill_name", "skillName", "name", "command")
_SHOWN = 20
_MAX_GLOBS = 50


@plain_dataclass(frozen=True)
class Skill:
    """A directory with a `SKILL.md`."""

    directory: str
    """Absolute path."""

    name: str
    """Name that its `SKILL.md` declares, else that of the directory."""

    @property
    def names(self) -> frozenset[str]:
        """Return the names by which it may be called: its own, and its directory's."""
        return frozenset((self.name, posixpath.basename(self.directory)))


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Skills:
    """How an agent used and changed its skills, in [0, 1]: the mean of the parts that are given.

    A skill is named as its `SKILL.md` declares, or as its directory. It counts as used if a tool call that did not fail
    reads or runs a file in its directory, or names it to a tool for skills.
    """

    expected: tuple[str, ...] | None = None
    """Skills that it should use, and no others; the part is the F1 of used and expected ones. Empty if none should be
    used: then the part is 1.0 if none was. None for no such part.
    """

    updated: tuple[str, ...] = ()
    """Skills that it should change or create; the part is the share of them."""

    unchanged: tuple[str, ...] = ()
    """Skills that it should leave as they were; the part is the share of them."""

    directories: tuple[Place, ...] = ()
    """Directories of the skills; by default all captured ones, among them those in which the agent looks for skills."""

    space: ClassVar[Space] = "memory"

    @model_validator(mode="after")
    def _require_part(self) -> Skills:
        if self.expected is None and not self.updated and not self.unchanged:
            raise ValueError("asks nothing: give `expected`, `updated` or `unchanged`")
        if both := set(self.updated) & set(self.unchanged):
            raise ValueError(f"{min(both)!r} cannot be both updated and unchanged")
        return self

    def memory_directories(self, skill_paths: Sequence[str]) -> tuple[str, ...]:
        """Return the directories that have to be captured.

        Args:
            skill_paths: Directories in which the agent looks for skills, captured if `directories` is empty.
        """
        return self.directories or tuple(skill_paths)

    async def score(self, node: RolloutNode) -> VerifyResult:
        """Return the mean, with one event and the items `recall`, `precision`, `f1`, `updated`, `unchanged`.

        Items that are not asked for are left out, as is recall without expected skills, and precision without used
        ones.

        Raises:
            RewardFuncError: The captures or tool calls don't show what the agent did with its skills.
        """
        before, after = read_memory(node.rollout.evidence)
        seen = _Seen(before, after, self._resolve_directories(before, after), diff_memory(before, after))
        parts: list[float] = []
        items: dict[str, float] = {}
        meta: dict[str, Any] = {}
        warnings: list[str] = []
        if self.expected is not None:
            used = _find_used(node, seen)
            scores = _score_agreement(set(self.expected), used, seen)
            items |= scores
            parts.append(scores["f1"])
            meta["used"] = {name: seqs[:_SHOWN] for name, seqs in used.items()}
            warnings = [
                f"the expected skill {name!r} is in none of the captured directories"
                for name in self.expected
                if not seen.find_named(name) and name not in used
            ]
        for kind, wanted in (("updated", self.updated), ("unchanged", self.unchanged)):
            if wanted:
                hits = {name: _has_state(kind, name, seen) for name in wanted}
                items[kind] = sum(hits.values()) / len(hits)
                parts.append(items[kind])
                meta[kind] = hits
        if self.updated or self.unchanged:
            meta["changes"] = format_changes(seen.changes)
        value = sum(parts) / len(parts)
        event = RewardEvent(space="memory", value=value, source="skills", ts=datetime.now(UTC), meta=meta)
        return VerifyResult(reward=value, items=items, events=[event], space="memory", warnings=warnings)

    def _resolve_directories(self, before: MemoryCapture, after: MemoryCapture) -> tuple[str, ...]:
        """Return the absolute directories of the skills. Raise `RewardFuncError` if none is known or captured."""
        places = self.directories or after.directories
        if not places:
            raise RewardFuncError(
                "it is not known where this agent looks for skills", key="directories", remedy="name the directories"
            )
        for capture in (before, after):
            require_captured(capture, places)
        return tuple(make_absolute(place, home=after.home, workspace=after.workspace) for place in places)


class _Seen:
    """The skills that existed before or after the agent, and the changes in them."""

    def __init__(
        self, before: MemoryCapture, after: MemoryCapture, places: Collection[str], changes: Iterable[MemoryChange]
    ) -> None:
        self.home = after.home
        self.before, self.after = find_skills(before, places), find_skills(after, places)
        self.all = self.before | self.after
        self.files = [
            path for path in sorted(before.files.keys() | after.files.keys()) if self.find_owner(path) is not None
        ]
        self._filled: dict[str, list[str]] = {}
        self.changes = [change for change in changes if self.find_owner(change.path) is not None]

    def find_named(self, name: str) -> list[Skill]:
        """Return all skills that may be called by a name."""
        known = [*self.before.values(), *self.after.values()]
        return list(dict.fromkeys(skill for skill in known if name in skill.names))

    def expand_glob(self, glob: str) -> list[str]:
        """Return the files of skills that match a glob, as a shell expands it; none after too many globs."""
        if not has_wildcards(glob) or len(self._filled) >= _MAX_GLOBS:
            return self._filled.get(glob, [])
        if glob not in self._filled:
            above = get_fixed_part(glob)
            self._filled[glob] = [path for path in self.files if path.startswith(above) and matches(path, glob)]
        return self._filled[glob]

    def find_owner(self, path: str) -> str | None:
        """Return the innermost skill's directory that contains a path; None if there is none."""
        while path != "/":
            path = posixpath.dirname(path)
            if path in self.all:
                return path
        return None


def find_skills(capture: MemoryCapture, directories: Collection[str]) -> dict[str, Skill]:
    """Return the skills below these absolute directories, by their directories."""
    found = {}
    for path, file in capture.files.items():
        directory, _, name = path.rpartition("/")
        if name == "SKILL.md" and file.link is None and is_below(path, directories):
            found[directory] = Skill(directory, _read_declared_name(file.text or "") or posixpath.basename(directory))
    return found


def _read_declared_name(text: str) -> str | None:
    """Return the name in the front matter of a `SKILL.md`; None if there is none."""
    front = _FRONT.match(text)
    # Only its line is parsed: an agent's YAML must not keep the parser busy.
    line = _NAME.search(front[1]) if front else None
    try:
        table = yaml.safe_load(line[0]) if line else None
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    name = table.get("name") if isinstance(table, dict) else None
    return name.strip() or None if isinstance(name, str) else None


# --- use -----------------------------------------------------------------------------------------------


def _find_used(node: RolloutNode, seen: _Seen) -> dict[str, list[int]]:
    """Return the used skills by name, with the `seq` of the calls. Raise `RewardFuncError` for the oracle."""
    if any(event["type"] == "oracle" for event in node.trajectory):
        raise RewardFuncError(
            "what the oracle's solution reads is in no tool call, so the skills that it used are not known",
            remedy="ask for `updated` or `unchanged` only, or score another agent",
        )
    used: dict[str, list[int]] = {}
    for call in list_calls(node):
        for name in dict.fromkeys((*_find_read(call, seen), *_find_invoked(call, seen))) if not call.failed else ():
            used.setdefault(name, []).append(call.seq)
    return used


def _find_read(call: ToolCall, seen: _Seen) -> Iterator[str]:
    """Yield the names of the skills whose files a call reads or runs."""
    for access in call.accesses:
        if access.mode not in ("read", "run"):
            continue
        in_home = _HOME.search(access.path)
        path = seen.home + access.path[in_home.end() :] if in_home else access.path
        # A shell expands wildcards, so one command may read files of many skills.
        for one in (path, *seen.expand_glob(path)):
            if (directory := seen.find_owner(one)) is not None:
                yield seen.all[directory].name


def _find_invoked(call: ToolCall, seen: _Seen) -> Iterator[str]:
    """Yield the names of the skills that a call names to a tool for skills."""
    for tool, given in call.tools:
        if not _SKILL_TOOL.match(tool.tool or tool.name):
            continue
        name = next((given[key] for key in _NAMING if isinstance(given.get(key), str) and given[key]), None)
        if name is not None:
            # A skill of a package is named `package:skill`, and one that is called as a command `/skill`.
            plain = name.strip().removeprefix("/").split()[0].rpartition(":")[2] if name.strip() else name
            known = seen.find_named(name) or seen.find_named(plain)
            yield known[0].name if known else plain


def _score_agreement(expected: set[str], used: Collection[str], seen: _Seen) -> dict[str, float]:
    """Return recall, precision and F1 of the used skills against the expected ones."""
    names = {one: {one}.union(*(skill.names for skill in seen.find_named(one))) for one in {*expected, *used}}
    hits = [one for one in expected if any(names[one] & names[other] for other in used)]
    wanted = [one for one in used if any(names[one] & names[other] for other in expected)]
    scores = {"recall": len(hits) / len(expected)} if expected else {}
    scores |= {"precision": len(wanted) / len(used)} if used else {}
    if not scores:
        return {"f1": 1.0}
    return scores | {"f1": 2 * scores["recall"] * scores["precision"] / sum(scores.values()) if hits else 0.0}


# --- change --------------------------------------------------------------------------------------------


def _has_state(kind: str, name: str, seen: _Seen) -> bool:
    """Return whether a skill is `updated` or `unchanged`. Raise `RewardFuncError` if an unchanged one never existed."""
    places = {skill.directory for skill in seen.find_named(name)}
    has_changed = any(seen.find_owner(change.path) in places for change in seen.changes)
    if kind == "updated":
        return has_changed and any(directory in seen.after for directory in places)
    if not places:
        raise RewardFuncError(
            f"the skill {name!r}, which should stay unchanged, is in none of the captured directories",
            key="unchanged",
            remedy="name a skill that is there before the agent acts",
        )
    return not has_changed
