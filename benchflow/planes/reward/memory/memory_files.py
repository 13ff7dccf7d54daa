"""`MemoryFiles`: score claims about files of an agent's memory: changed, unchanged, absent, with given texts."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import field
from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, StringConstraints, model_validator
from pydantic.dataclasses import dataclass

from benchflow.contracts.reward import RewardEvent, RolloutNode, Space, VerifyResult
from benchflow.errors import RewardFuncError
from benchflow.planes.reward.memory.memory_capture import MemoryCapture, read_memory
from benchflow.planes.reward.memory.memory_difference import MemoryChange, diff_memory
from benchflow.planes.reward.memory.path_patterns import Place, get_fixed_part, is_below, make_absolute, matches

_SHOWN = 20

Text = Annotated[str, StringConstraints(min_length=1)]


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class MemoryFiles:
    """The share of claims about an agent's memory that hold, in [0, 1].

    Places are absolute, below the agent's home (`~/…`) or relative to the workspace; in globs, `**` matches any number
    of directories.
    """

    changed: tuple[Place, ...] = ()
    """Globs, for each of which some file must have been added or changed."""

    unchanged: tuple[Place, ...] = ()
    """Globs, for each of which no file may have been added, removed or changed."""

    contains: dict[Place, tuple[Text, ...]] = field(default_factory=dict)
    """Texts that a file must contain afterwards, by the file."""

    absent: tuple[Place, ...] = ()
    """Globs, for each of which no file may exist afterwards."""

    directories: tuple[Place, ...] = ()
    """Directories to capture; by default those of the claims."""

    space: ClassVar[Space] = "memory"

    @model_validator(mode="after")
    def _require_claim(self) -> MemoryFiles:
        if not (self.changed or self.unchanged or any(self.contains.values()) or self.absent):
            raise ValueError("claims nothing: give `changed`, `unchanged`, `contains` or `absent`")
        for glob in () if self.directories else self._list_places():
            if get_fixed_part(glob).strip("/~.") in ("", "{home}", "{workspace}"):
                raise ValueError(f"{glob!r} may be anywhere: name `directories`")
        return self

    def memory_directories(self, skill_paths: Sequence[str]) -> tuple[str, ...]:
        """Return the directories that have to be captured for the claims.

        Args:
            skill_paths: Directories in which the agent looks for skills; not used.
        """
        return self.directories or tuple(dict.fromkeys(map(get_fixed_part, self._list_places())))

    async def score(self, node: RolloutNode) -> VerifyResult:
        """Return the share, with one event, and an item for each kind of claim.

        Raises:
            RewardFuncError: A file or directory that a claim is about was not captured.
        """
        before, after = read_memory(node.rollout.evidence)
        for capture in (before, after):
            require_captured(capture, [get_fixed_part(glob) for glob in self._list_places()])
        verdicts: dict[str, dict[str, bool]] = {}
        evidence: list[dict[str, Any]] = []
        for kind, claim, holds, meta in self._check_claims(before, after, diff_memory(before, after)):
            verdicts.setdefault(kind, {})[claim] = holds
            evidence.append({"claim": kind, "of": claim, "holds": holds} | meta)
        items = {kind: _compute_share(claims.values()) for kind, claims in verdicts.items()}
        value = _compute_share([holds for claims in verdicts.values() for holds in claims.values()])
        event = RewardEvent(
            space="memory", value=value, source="memory-files", ts=datetime.now(UTC), meta={"claims": evidence}
        )
        return VerifyResult(reward=value, items=items, events=[event], space="memory")

    def _list_places(self) -> tuple[str, ...]:
        return (*self.changed, *self.unchanged, *self.contains, *self.absent)

    def _check_claims(
        self, before: MemoryCapture, after: MemoryCapture, changes: list[MemoryChange]
    ) -> Iterator[tuple[str, str, bool, dict[str, Any]]]:
        """Yield (kind, claim, whether it holds, evidence) of each claim."""

        def resolve(glob: str) -> str:
            return make_absolute(glob, home=after.home, workspace=after.workspace)

        for glob in self.changed:
            hit = [change for change in changes if change.kind != "removed" and matches(change.path, resolve(glob))]
            yield "changed", glob, bool(hit), {"changes": format_changes(hit)}
        for glob in self.unchanged:
            hit = [change for change in changes if matches(change.path, resolve(glob))]
            yield "unchanged", glob, not hit, {"changes": format_changes(hit)}
        for path, texts in self.contains.items():
            content = _read_text(after, resolve(path)) if texts else None
            for text in texts:
                yield "contains", f"{path}: {text[:200]}", content is not None and text in content, {}
        for glob in self.absent:
            paths = [path for path in after.files if matches(path, resolve(glob))]
            yield "absent", glob, not paths, {"paths": paths[:_SHOWN]}


def require_captured(capture: MemoryCapture, places: Sequence[str]) -> None:
    """Raise `RewardFuncError` unless all files below these places are in the capture."""
    for place in places:
        path = make_absolute(place, home=capture.home, workspace=capture.workspace)
        if not is_below(path, capture.directories):
            raise RewardFuncError(
                f"{place} was not captured", key="directories", remedy="run the task again with this directory declared"
            )
        for link, file in capture.files.items():
            if file.link is not None and is_below(path, [link]):
                raise RewardFuncError(
                    f"{place} is not known: {link} is a symbolic link, which is not followed",
                    key="directories",
                    remedy=f"name what it leads to: {file.link}",
                )
    if not capture.is_complete:
        raise RewardFuncError(
            "the memory has more files than are captured: what is not known of cannot be scored",
            key="directories",
            remedy="name narrower directories",
        )


def format_changes(changes: Sequence[MemoryChange]) -> list[dict[str, Any]]:
    """Return changes as evidence for an event, limited in number and length."""
    return [
        {"path": change.path, "kind": change.kind} | ({"diff": change.diff[:1000]} if change.diff else {})
        for change in changes[:_SHOWN]
    ]


def _read_text(capture: MemoryCapture, path: str) -> str | None:
    """Return the text of a captured file; None if the file does not exist. Raise `RewardFuncError` if it is unknown."""
    file = capture.files.get(path)
    if file is not None and file.text is None:
        why = "a symbolic link, which is not followed" if file.link else "too large, not UTF-8, or beyond what is kept"
        raise RewardFuncError(
            f"the text of {path} is not known: it is {why}", key="contains", remedy="ask for `changed` instead"
        )
    return file.text if file is not None else None


def _compute_share(verdicts: Collection[bool]) -> float:
    return sum(verdicts) / len(verdicts)
