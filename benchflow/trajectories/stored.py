"""A tree as it is stored: one `tree.json`, and a directory of files for each of its chains.

The root's chain has the files of the rollout itself; a child's are in `children/<its place>/`, those of its own
children below that. Only a chain's own files tell where its events lie, so that a path from the root to a leaf is put
together here. A tree that still grows is read as far as anybody has written it.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from benchflow.contracts.base import Model, non_finite
from benchflow.contracts.rollout import Node, RolloutTree
from benchflow.errors import ResultFileError, UsageError
from benchflow.paths import RolloutPaths
from benchflow.store import write_atomic
from benchflow.stored_files import read_stored, require_directory
from benchflow.trajectories.growth import chain_of, is_asked, node_in, start_of, turn_of
from benchflow.trajectories.journal import read_journal

M = TypeVar("M", bound=Model)

_CHILDREN = "children"


@dataclass(frozen=True)
class StoredTree:
    """The tree of a rollout, and where its files are. paths: of the root; chain: of whose directory was asked for."""

    paths: RolloutPaths
    tree: RolloutTree
    chain: str = ""

    @property
    def leaves(self) -> list[Node]:
        """Where its trajectories end, in the order of the tree."""
        return self.tree.leaves

    @property
    def branched(self) -> list[Node]:
        """The nodes that have a V(s), or will have one when their children have ended."""
        return [node for node in self.tree.nodes if node.n or node.failed or node.pending]

    @property
    def value(self) -> Node | None:
        """The node whose V(s) is the reward of the root; None where that was measured."""
        last = next(node for node in reversed(self.tree.nodes) if not chain_of(node.id))
        return last if last in self.branched else None

    def node(self, name: str) -> Node:
        """The node of this name. Raises `UsageError`, with the leaves."""
        for node in self.tree.nodes:
            if node.id == name:
                return node
        names = [leaf.id for leaf in self.leaves]
        more = f" and {len(names) - 20} more" if len(names) > 20 else ""
        raise UsageError(
            f"there is no node {name!r} in this tree",
            file=str(self.paths.tree),
            key="NODE",
            remedy=f"its leaves are: {', '.join(names[:20])}{more}",
        )

    def chain_files(self, chain: str) -> RolloutPaths:
        """The files of a chain; empty for the root's."""
        return self.paths.child(chain) if chain else self.paths

    def trajectory(self, leaf: str) -> list[dict[str, Any]]:
        """The events from the root to a node, each as its chain's file has it, but for `seq`, which counts them all."""
        path = [node.id for node in self.tree.path(self.node(leaf).id)]
        events: list[dict[str, Any]] = []
        for chain in dict.fromkeys(chain_of(node) for node in path):
            mine = {node for node in path if chain_of(node) == chain}
            events += [event for event in chain_events(self.chain_files(chain)) if event.get("node") in mine]
        return [event | {"seq": number} for number, event in enumerate(events)]

    def reward(self, node: str, rewards: Mapping[str, float]) -> StoredTree:
        """Give a node rewards of one's own, and return the tree with them. They are in `tree.json` then, at once.

        They count among the node's rewards: scorers are shown them, and so is who looks at the tree. What was measured
        stays as it was, and so do returns, V(s) and advantages, which are made of that alone. A name that was given
        before is given anew. Raises `UsageError` for a node that is not there, a name that a verifier has used, and
        what is no finite number; `ResultFileError` for a rollout that has not ended.
        """
        if not self.paths.result.is_file():
            raise ResultFileError(
                "this rollout has not ended, and its tree still grows",
                file=str(self.paths.root),
                remedy="give rewards when it has its result: bench job watch",
            )
        with _alone(self.paths.root):
            stored = StoredTree(self.paths, _whole(self.paths), self.chain)
            changed = _with_rewards(stored.node(node), rewards)
            nodes = [changed if each.id == node else each for each in stored.tree.nodes]
            tree = stored.tree.model_copy(update={"nodes": nodes})
            text = json.dumps(tree.model_dump(mode="json"), indent=2, ensure_ascii=False)
            write_atomic(self.paths.tree, f"{text}\n".encode())
        return StoredTree(self.paths, tree, self.chain)


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Nobody else changes what is in a directory meanwhile."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _with_rewards(node: Node, given: Mapping[str, float]) -> Node:
    """The node with rewards that somebody gives it."""
    measured = {name: value for name, value in (node.rewards or {}).items() if name not in node.given}
    for name, value in given.items():
        if name in measured:
            raise UsageError(
                f"{name!r} of {node.id} was measured by a verifier",
                key="rewards",
                remedy="use another name; bench rescore scores a job anew, by a rubric of your own",
            )
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise UsageError(f"{name} is {value!r}", key="rewards", remedy="give a finite number")
    rewards = (node.rewards or {}) | {name: float(value) for name, value in given.items()}
    names = tuple(dict.fromkeys([*node.given, *given]))
    return node.model_copy(update={"rewards": rewards, "given": names})


def load_tree(directory: Path | str) -> StoredTree:
    """The tree of a rollout, or, by the directory of a child, the tree that it belongs to.

    directory: `<jobs_dir>/<job>/<task>__<id>`. Raises `ResultFileError` where there is no tree yet.
    """
    paths, chain = _root_of(Path(directory).expanduser().absolute())
    # Whatever else lies there under that name is refused where it is read: a pipe is no tree that will come.
    if not os.path.lexists(paths.tree):
        raise ResultFileError(
            "there is no tree here: it is written when a rollout has branched, or has ended",
            file=str(paths.root),
            remedy="give <jobs_dir>/<job>/<task>__<id>",
        )
    return StoredTree(paths, _whole(paths), chain)


def path_before(chain: str) -> list[str]:
    """The nodes from the root to where a chain begins, as their names tell; none for the root's chain."""
    start = start_of(chain)
    if start is None:
        return []
    above = chain_of(start)
    path = path_before(above)
    begun = 0 if not path else _steps_to(path[-1]) + (0 if is_asked(path[-1]) else 1)
    return [*path, *(node_in(above, step) for step in range(begun, _steps_to(start))), start]


def events_before(paths: RolloutPaths) -> list[dict[str, Any]]:
    """The events that led to where a child begins, from the files above it, numbered by `seq` as one; none for a root.

    Nothing else of them is needed: the child may still run.
    """
    root, chain = _root_of(paths.root)
    events: list[dict[str, Any]] = []
    path = path_before(chain)
    for above in dict.fromkeys(chain_of(node) for node in path):
        files = root.child(above) if above else root
        events += [event for event in chain_events(files) if event.get("node") in path]
    return [event | {"seq": number} for number, event in enumerate(events)]


def _steps_to(node: str) -> int:
    return int(turn_of(node).rpartition("n")[2])


def chain_events(paths: RolloutPaths) -> list[dict[str, Any]]:
    """The events of one chain, from its own file."""
    try:
        return read_journal(paths.trajectory)
    except (ValueError, RecursionError) as error:
        raise spoilt(f"a line is no JSON: {error}", str(paths.trajectory)) from error


def read_model(model: type[M], file: Path) -> M:
    """What is in a file of a rollout. Raises `ResultFileError`."""
    try:
        found = model.model_validate_json(read_stored(file))
    except OSError as error:
        raise spoilt(f"cannot be read: {error.strerror}", str(file)) from error
    except ValidationError as error:
        raise spoilt(f"this is not what BenchFlow wrote: {error.errors()[0]['msg']}", str(file)) from error
    for place in non_finite(found):
        raise spoilt(f"this is not what BenchFlow wrote: {'.'.join(map(str, place))} is no finite number", str(file))
    return found


def spoilt(message: str, file: str | None) -> ResultFileError:
    """The error for a file that somebody has changed."""
    return ResultFileError(message, file=file, remedy="restore the file, or leave the rollout out")


def _root_of(directory: Path) -> tuple[RolloutPaths, str]:
    """The directory of a tree's root, and the chain that the given one is of; empty for the root's own."""
    parts: list[str] = []
    while directory.parent.name == _CHILDREN and (directory.parent.parent / "config.json").is_file():
        parts.insert(0, directory.name)
        directory = directory.parent.parent
    return RolloutPaths(directory), "/".join(parts)


def _whole(paths: RolloutPaths) -> RolloutTree:
    """The root's tree, with what the files of the other chains know of their own nodes."""
    tree = read_model(RolloutTree, paths.tree)
    nodes = {node.id: node for node in tree.nodes}
    for file in _trees_below(paths):
        for node in read_model(RolloutTree, file).nodes:
            known = nodes.get(node.id)
            if known is not None and chain_of(node.id) == _root_of(file.parent)[1]:
                nodes[node.id] = known.model_copy(update={"events": node.events, "scores": node.scores})
            elif known is None and node.parent in nodes:
                # Its parent has not been told of it yet.
                nodes[node.id] = node.model_copy(update={"chain": chain_of(node.id) or None})
    return tree.model_copy(update={"nodes": list(nodes.values())})


def _trees_below(paths: RolloutPaths) -> Iterator[Path]:
    """The trees that children have written, parents before children."""
    for directory in sorted((paths.root / _CHILDREN).glob("*/")):
        # A link could lead back to what is above it.
        require_directory(paths.root, f"{_CHILDREN}/{directory.name}")
        below = RolloutPaths(directory)
        if os.path.lexists(below.tree):
            yield below.tree
        yield from _trees_below(below)
