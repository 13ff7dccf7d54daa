"""A tree as it is stored: one `tree.json`, and a directory of files for each of its branch paths.

The root's branch path has the files of the rollout itself; a child's are in `children/<node>.<number>/`, those of its
own children below that. Only a branch path's own files hold the ranges of its events, so that a path from the root to a
leaf is assembled here. A tree that still grows is read as far as it is written.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import ValidationError

from benchflow.contracts.base import Model, non_finite
from benchflow.contracts.rollout_records import Node, RolloutTree
from benchflow.errors import ResultFileError, UsageError
from benchflow.host_files import lock, open_fd, write_atomic
from benchflow.paths import RolloutPaths
from benchflow.stored_files import read_stored, require_directory
from benchflow.trajectories.growth import get_branch_path, get_start_node, get_step_node, is_question, make_node_id
from benchflow.trajectories.journal import read_journal

M = TypeVar("M", bound=Model)

_CHILDREN = "children"


@dataclass(frozen=True)
class StoredTree:
    """The tree of a rollout, and the location of its files."""

    paths: RolloutPaths
    """Files of the root."""

    tree: RolloutTree
    """The whole tree."""

    chain: str = ""
    """Branch path whose directory was loaded; empty for the root's."""

    @property
    def leaves(self) -> list[Node]:
        """Return the nodes where trajectories end, in the order of the tree."""
        return self.tree.leaves

    @property
    def branched(self) -> list[Node]:
        """Return the nodes that have a V(s), or will have one when their children have ended."""
        return [node for node in self.tree.nodes if node.n or node.failed or node.pending]

    @property
    def value(self) -> Node | None:
        """Return the node whose V(s) is the reward of the root; None if the root's reward was measured."""
        last = next(node for node in reversed(self.tree.nodes) if not get_branch_path(node.id))
        return last if last in self.branched else None

    def node(self, name: str) -> Node:
        """Return the node of this id. Raise `UsageError`, which lists the leaves, if there is none."""
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
        """Return the files of a branch path; empty for the root's."""
        return self.paths.child(chain) if chain else self.paths

    def trajectory(self, leaf: str) -> list[dict[str, Any]]:
        """Return the events from the root to a node, as stored except for `seq`, which counts all of them.

        Args:
            leaf: Id of the node.

        Raises:
            UsageError: There is no such node.
            ResultFileError: A file was changed.
        """
        path = [node.id for node in self.tree.path(self.node(leaf).id)]
        events: list[dict[str, Any]] = []
        for chain in dict.fromkeys(get_branch_path(node) for node in path):
            mine = {node for node in path if get_branch_path(node) == chain}
            events += [event for event in read_events(self.chain_files(chain)) if event.get("node") in mine]
        return [event | {"seq": number} for number, event in enumerate(events)]

    def reward(self, node: str, rewards: Mapping[str, float]) -> StoredTree:
        """Add a user's rewards to a node, and return the new tree. `tree.json` is rewritten at once.

        They count among the node's rewards: scorers and readers of the tree see them. Measured rewards do not change,
        and neither do returns, V(s) and advantages, which derive from them alone. A name that was given before gets the
        new value.

        Args:
            node: Id of the node.
            rewards: Rewards by name.

        Raises:
            UsageError: There is no such node, a verifier has used a name, or a value is no finite number.
            ResultFileError: The rollout has not ended.
        """
        if not self.paths.result.is_file():
            raise ResultFileError(
                "this rollout has not ended, and its tree still grows",
                file=str(self.paths.root),
                remedy="give rewards when it has its result: bench job watch",
            )
        with open_fd(self.paths.root, os.O_RDONLY | os.O_DIRECTORY) as directory:
            lock(directory)
            stored = StoredTree(self.paths, _read_whole_tree(self.paths), self.chain)
            changed = _add_rewards(stored.node(node), rewards)
            nodes = [changed if each.id == node else each for each in stored.tree.nodes]
            tree = stored.tree.model_copy(update={"nodes": nodes})
            text = json.dumps(tree.model_dump(mode="json"), indent=2, ensure_ascii=False)
            write_atomic(self.paths.tree, f"{text}\n".encode())
        return StoredTree(self.paths, tree, self.chain)


def _add_rewards(node: Node, given: Mapping[str, float]) -> Node:
    """Return the node with a user's rewards added. Raise `UsageError` for a measured name, or no finite number."""
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
    """Load the tree of a rollout, or, for the directory of a child, the tree to which it belongs.

    Args:
        directory: `<jobs_dir>/<job>/<task>__<id>`, or the directory of a child.

    Raises:
        ResultFileError: There is no tree yet, or a file was changed.
    """
    paths, chain = _find_root(Path(directory).expanduser().absolute())
    # Anything else of that name, such as a pipe, is refused by the read below, and not taken for a missing tree.
    if not os.path.lexists(paths.tree):
        raise ResultFileError(
            "there is no tree here: it is written when a rollout has branched, or has ended",
            file=str(paths.root),
            remedy="give <jobs_dir>/<job>/<task>__<id>",
        )
    return StoredTree(paths, _read_whole_tree(paths), chain)


def list_nodes_before(chain: str) -> list[str]:
    """Return the ids of the nodes from the root to a branch path's start, by its name alone; empty for the root's."""
    start = get_start_node(chain)
    if start is None:
        return []
    above = get_branch_path(start)
    path = list_nodes_before(above)
    begun = 0 if not path else _count_steps(path[-1]) + (0 if is_question(path[-1]) else 1)
    return [*path, *(make_node_id(above, step) for step in range(begun, _count_steps(start))), start]


def read_events_before(paths: RolloutPaths) -> list[dict[str, Any]]:
    """Return the events that led to a child's start, numbered by `seq` from 0; empty for a root.

    They are read from the trajectories of the branch paths above it, and no other file is: the child may still run.
    """
    root, chain = _find_root(paths.root)
    events: list[dict[str, Any]] = []
    path = list_nodes_before(chain)
    for above in dict.fromkeys(get_branch_path(node) for node in path):
        files = root.child(above) if above else root
        events += [event for event in read_events(files) if event.get("node") in path]
    return [event | {"seq": number} for number, event in enumerate(events)]


def _count_steps(node: str) -> int:
    """Return the number of steps in a node's id."""
    return int(get_step_node(node).rpartition("n")[2])


def read_events(paths: RolloutPaths) -> list[dict[str, Any]]:
    """Return the events of one branch path, from its own file. Raise `ResultFileError` if a line is no JSON."""
    try:
        return read_journal(paths.trajectory)
    except (ValueError, RecursionError) as error:
        raise make_file_error(f"a line is no JSON: {error}", str(paths.trajectory)) from error


def read_model(model: type[M], file: Path) -> M:
    """Read a file of a rollout as a model.

    Raises:
        ResultFileError: It cannot be read, is invalid, or holds NaN or infinity.
    """
    try:
        found = model.model_validate_json(read_stored(file))
    except OSError as error:
        raise make_file_error(f"cannot be read: {error.strerror}", str(file)) from error
    except ValidationError as error:
        raise make_file_error(f"this is not what BenchFlow wrote: {error.errors()[0]['msg']}", str(file)) from error
    for place in non_finite(found):
        raise make_file_error(
            f"this is not what BenchFlow wrote: {'.'.join(map(str, place))} is no finite number", str(file)
        )
    return found


def make_file_error(message: str, file: str | None) -> ResultFileError:
    """Return the error for an invalid file, which was probably changed."""
    return ResultFileError(message, file=file, remedy="restore the file, or leave the rollout out")


def _find_root(directory: Path) -> tuple[RolloutPaths, str]:
    """Return the files of a tree's root, and the branch path of the given directory; empty for the root's own."""
    parts: list[str] = []
    while directory.parent.name == _CHILDREN and (directory.parent.parent / "config.json").is_file():
        parts.insert(0, directory.name)
        directory = directory.parent.parent
    return RolloutPaths(directory), "/".join(parts)


def _read_whole_tree(paths: RolloutPaths) -> RolloutTree:
    """Return the root's tree, completed from the trees of its children with event ranges, scores and newer nodes."""
    tree = read_model(RolloutTree, paths.tree)
    nodes = {node.id: node for node in tree.nodes}
    for file in _iterate_trees(paths):
        for node in read_model(RolloutTree, file).nodes:
            known = nodes.get(node.id)
            if known is not None and get_branch_path(node.id) == _find_root(file.parent)[1]:
                nodes[node.id] = known.model_copy(update={"events": node.events, "scores": node.scores})
            elif known is None and node.parent in nodes:
                # The child has not reported it to its parent yet.
                nodes[node.id] = node.model_copy(update={"chain": get_branch_path(node.id) or None})
    return tree.model_copy(update={"nodes": list(nodes.values())})


def _iterate_trees(paths: RolloutPaths) -> Iterator[Path]:
    """Yield the `tree.json` of every child, parents before children."""
    for directory in sorted((paths.root / _CHILDREN).glob("*/")):
        # A link could lead back to a directory above, without end.
        require_directory(paths.root, f"{_CHILDREN}/{directory.name}")
        below = RolloutPaths(directory)
        if os.path.lexists(below.tree):
            yield below.tree
        yield from _iterate_trees(below)
