"""Drawing of a tree in a terminal: its nodes, their rewards and values, and the reasons of failures.

A branch path is drawn straight down, its children to the right of it. Nodes without anything to show share a line with
the next node of their branch path; text that exceeds the width continues in the next line. In a large tree, children
are folded into one line, which has the range of their returns and names those that failed.

rich's `Tree` has no child in its parent's column, and cuts the text of the nodes on deep levels away: of 16 levels, 60
columns wide, it shows 13 names.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from benchflow.contracts.rewards import shown_keys
from benchflow.contracts.rollout_records import Failure, Node, RolloutTree
from benchflow.sanitise import sanitise_line, sanitise_log
from benchflow.trajectories.growth import get_branch_path, get_start_node

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.text import Text

CHECKPOINT = "◆"
"""Sign of a node with a retained checkpoint."""

_INDENT = 3
_MIN_TEXT = 24
"""Minimum of columns for the text of a node: guides that leave fewer are cut."""
_MAX_WARNINGS = 5
"""Maximum of a tree's warnings that are shown."""
_MAX_NAMES = 3
"""Maximum of failed children that a folded line names."""


class _Line(NamedTuple):
    """One line: a run of nodes, a child without nodes, or folded children."""

    guide: str
    """Guide lines before the text."""

    rest: str
    """Guide lines before the further lines of a wrapped text."""

    nodes: Sequence[Node]
    chain: str
    """Branch path of the nodes, or of the child."""

    is_running: bool = False
    failure: Failure | None = None
    folded: str = ""
    """Text of folded children; empty for other lines."""


def draw_tree(
    tree: RolloutTree, *, width: int, depth: int | None = None, limit: int | None = None, most: int | None = None
) -> Group:
    """Draw a tree as a rich renderable, within `width` columns.

    Args:
        tree: The tree.
        width: Number of columns.
        depth: Maximum depth of branches; None: all.
        limit: Maximum of children of one node; None: all.
        most: Maximum of lines, to which the tree is folded as far as possible if neither `depth` nor `limit` is given;
            None: all lines.
    """
    from rich.console import Console, Group
    from rich.text import Text

    console = Console(width=width)
    lines = list(_Shape(tree, depth, limit).lines())
    if depth is None and limit is None and most is not None and len(lines) > most:
        lines = _fold_lines(tree, most)
    told = _LineText(tree, has_full_names=_fit_with_full_names(lines, width))
    leaves = f"{len(tree.leaves)} {'leaf' if len(tree.leaves) == 1 else 'leaves'}"
    title = Text.assemble((tree.rollout, "bold"), f"  {len(tree.nodes)} nodes, {leaves}")
    drawn = list(title.wrap(console, width))
    for line in lines:
        drawn += _wrap_text(line, told.text(line), console)
    if legend := " · ".join(told.legend()):
        drawn += Text(legend, style="dim").wrap(console, width)
    for warning in _limit_warnings(tree.warnings):
        drawn += Text.assemble(("warning: ", "yellow"), sanitise_line(warning)).wrap(console, width)
    for part in drawn:
        part.rstrip()
    return Group(*drawn)


def _limit_warnings(warnings: Sequence[str]) -> list[str]:
    """Return the first warnings, and the number of further ones: a tree may have one for each child."""
    more = len(warnings) - _MAX_WARNINGS
    return [*warnings[:_MAX_WARNINGS], *([f"{more} more in tree.json"] if more > 0 else [])]


def _fold_lines(tree: RolloutTree, most: int) -> list[_Line]:
    """Return the lines of a tree that is folded to at most `most` lines, or as far as possible."""
    lines: list[_Line] = []
    for depth, limit in [*((None, limit) for limit in (16, 8, 4)), *((depth, 4) for depth in (4, 3, 2, 1))]:
        lines = list(_Shape(tree, depth, limit).lines())
        if len(lines) <= most:
            break
    return lines


# --- shape ----------------------------------------------------------------------------------------------


class _Shape:
    """The structure of a drawing. `depth` and `limit` are as in `draw_tree`."""

    def __init__(self, tree: RolloutTree, depth: int | None, limit: int | None) -> None:
        self._depth, self._limit = depth, limit
        self._root = next(node for node in tree.nodes if node.id == tree.root)
        self._failed = {chain: failure for node in tree.nodes for chain, failure in node.failed.items()}
        self._children: dict[str, list[Node]] = defaultdict(list)
        for node in tree.nodes:
            if node.parent is not None:
                self._children[node.parent].append(node)

    def lines(self) -> Iterator[_Line]:
        """Yield the lines of the drawing, from top to bottom."""
        # A stack of what is still to be drawn: guide, column of the branch path, depth, and the node or line.
        waiting: list[tuple[str, str, int, Node | _Line]] = [("", "", 0, self._root)]
        while waiting:
            guide, column, depth, at = waiting.pop()
            if isinstance(at, _Line):
                yield at._replace(guide=guide, rest=column)
                continue
            run = self._collect_run(at)
            straight, branches = self._list_children(run[-1])
            branches = self._limit_branches(branches, depth)
            yield self._make_line(guide, column + ("│" if branches else " ").ljust(_INDENT), run)
            if straight is not None:
                waiting.append((column, column, depth, straight))
            for number, branch in enumerate(reversed(branches)):
                is_last = number == 0 and straight is None
                edge, rest = ("└─ ", "   ") if is_last else ("├─ ", "│  ")
                waiting.append((column + edge, column + rest, depth + 1, branch))

    def _limit_branches(self, branches: list[Node | _Line], depth: int) -> list[Node | _Line]:
        """Return the children to draw at a depth; those beyond a limit are folded into one line."""
        limit = 0 if self._depth is not None and depth >= self._depth else self._limit
        # Folding a single child would save no line.
        if limit is None or len(branches) <= limit + (limit > 0):
            return branches
        shown, rest = branches[:limit], branches[limit:]
        return [*shown, _Line("", "", (), "", folded=self._summarise(rest, is_rest=limit > 0))] if rest else shown

    def _summarise(self, branches: Sequence[Node | _Line], *, is_rest: bool) -> str:
        """Return the summary of children that are not drawn. `is_rest`: whether others of the node are drawn."""
        begun = [branch for branch in branches if not isinstance(branch, _Line)]
        others = [branch for branch in branches if isinstance(branch, _Line)]
        inside = [node for branch in begun for node in self._iterate_subtree(branch)]
        returns = [node.returns for node in inside if node.returns is not None]
        leaves = sum(not self._children.get(node.id) for node in inside)
        told = f"… {len(branches)} {'more ' if is_rest else ''}{'child' if len(branches) == 1 else 'children'}"
        parts = [f"{told}, {leaves} leaves" if leaves > len(begun) else told]
        if returns:
            mean = _format_number(math.fsum(returns) / len(returns))
            parts.append(f"return={_format_number(min(returns))} … {_format_number(max(returns))}, mean {mean}")
        if running := sum(each.is_running for each in others) + sum(len(node.pending) for node in inside):
            parts.append(f"{running} still running")
        chains = [branch.chain if isinstance(branch, _Line) else get_branch_path(branch.id) for branch in branches]
        failed = [chain for chain in chains if chain in self._failed]
        failed += [chain for node in inside for chain in node.failed]
        if failed:
            names = ", ".join(failed[:_MAX_NAMES]) + (", …" if len(failed) > _MAX_NAMES else "")
            parts.append(f"{len(failed)} failed: {names}")
        return "  ".join(parts)

    def _iterate_subtree(self, node: Node) -> Iterator[Node]:
        """Yield a node and all nodes below it."""
        waiting = [node]
        while waiting:
            at = waiting.pop()
            waiting += self._children.get(at.id, ())
            yield at

    def _make_line(self, guide: str, rest: str, run: Sequence[Node]) -> _Line:
        """Return the line of a run of nodes, with the failure of the child if the run begins it."""
        chain = get_branch_path(run[0].id)
        begins = run[0].parent is not None and get_start_node(chain) == run[0].parent
        return _Line(guide, rest, run, chain, failure=self._failed.get(chain) if begins else None)

    def _collect_run(self, node: Node) -> list[Node]:
        """Return a node and those after it in its branch path, up to the first one with anything to show."""
        run = [node]
        while _is_quiet(run[-1]):
            straight, branches = self._list_children(run[-1])
            if straight is None or branches or get_branch_path(straight.id) != get_branch_path(node.id):
                break
            if run[-1].role not in (None, straight.role):
                break
            run.append(straight)
        return run

    def _list_children(self, node: Node) -> tuple[Node | None, list[Node | _Line]]:
        """Return the node by which the branch path continues, and the children; one without nodes as a line."""
        children = self._children[node.id]
        straight = next((child for child in children if get_start_node(get_branch_path(child.id)) != node.id), None)
        branches: dict[str, Node | _Line] = {
            **{chain: _Line("", "", (), chain, is_running=True) for chain in node.pending},
            **{chain: _Line("", "", (), chain, failure=failure) for chain, failure in node.failed.items()},
        }
        for child in children:
            if child is not straight:
                branches[
                    get_branch_path(child.id) if get_start_node(get_branch_path(child.id)) == node.id else child.id
                ] = child
        return straight, [branches[chain] for chain in sorted(branches, key=_make_sort_key)]


def _make_sort_key(chain: str) -> tuple[int, str]:
    """Return the sort key of a branch path: the child's number, then the name."""
    number = chain.rpartition(".")[2]
    return (int(number) if number.isdecimal() else 0, chain)


def _is_quiet(node: Node) -> bool:
    """Return whether a node has nothing to show besides its id."""
    return not (node.rewards or node.checkpoint or node.n or node.failed or node.pending) and (
        node.returns is None and node.value is None
    )


# --- text -----------------------------------------------------------------------------------------------


def _fit_with_full_names(lines: Sequence[_Line], width: int) -> bool:
    """Return whether the full ids of all nodes leave half of the width."""
    return all(len(line.guide) + len(line.nodes[0].id if line.nodes else line.chain) <= width // 2 for line in lines)


class _LineText:
    """The text of lines."""

    def __init__(self, tree: RolloutTree, *, has_full_names: bool) -> None:
        self._has_full_names = has_full_names
        self._nodes = tree.nodes
        self._parents = {node.parent for node in tree.nodes}
        self._has_roles = len({node.role for node in tree.nodes} - {None}) > 1
        self._advantage = ""  # the estimator that is shown; a single leaf has no group
        if sum(node.returns is not None for node in tree.leaves) > 1:
            self._advantage = "tree_grpo" if any(node.tree for node in tree.nodes) else "grpo"

    def text(self, line: _Line) -> Text:
        """Return the styled text of a line."""
        from rich.text import Text

        if line.folded:
            return Text(sanitise_line(line.folded), style="dim")
        text = Text(sanitise_line(self._format_name(line)), style="" if line.nodes else "dim")
        if line.nodes:
            node = line.nodes[-1]
            if node.checkpoint:
                text.append(f" {CHECKPOINT}", "cyan")
            # Earlier versions wrote `process` for a child of a node without a session.
            if line.nodes[0].rung not in (None, "process"):
                text.append(f"  session={line.nodes[0].rung}", "dim")
            for fact, style in self._iterate_facts(node):
                text.append("  ").append(sanitise_line(fact), style)
        if line.failure is not None:
            text.append("  ").append(f"failed: {_format_failure(line.failure)}", "red")
        elif line.is_running:
            text.append("  ").append("still running", "dim")
        return text

    def _format_name(self, line: _Line) -> str:
        """Return the id, or range of ids, of a line's nodes; without the parent's part if full ids do not fit."""
        if not line.nodes:
            return line.chain if self._has_full_names else line.chain.removeprefix(get_start_node(line.chain) or "")
        first, last = line.nodes[0], line.nodes[-1]
        name = first.id
        if not self._has_full_names:
            is_first = get_start_node(line.chain) == first.parent
            name = first.id.removeprefix(first.parent or "") if is_first else first.id.rpartition("/")[2]
        return name if first is last else f"{name} – {last.id.rpartition('/')[2]}"

    def _iterate_facts(self, node: Node) -> Iterator[tuple[str, str]]:
        """Yield a node's rewards, return, V(s) and advantage, each with its style."""
        if self._has_roles and node.role:
            yield node.role, "dim"
        for name in node.given:
            if name != "reward":
                yield f"{name}={_format_number((node.rewards or {})[name])}", "cyan"
        reward = (node.rewards or {}).get("reward")
        if reward is None and node.rewards and not node.given:
            yield shown_keys(node.rewards), "cyan"
        if reward is not None:
            yield f"reward={_format_number(reward)}", "green" if reward > 0 else ""
        if node.returns is not None and node.returns != reward:
            yield f"return={_format_number(node.returns)}", "green" if node.returns > 0 else ""
        if node.n or node.failed or node.pending:
            yield _format_value(node), "bold"
        if self._advantage in node.advantages and (node.n or node.id not in self._parents):
            yield f"A={_format_signed(node.advantages[self._advantage])}", "magenta"

    def legend(self) -> Iterator[str]:
        """Yield an explanation of each sign that the drawing uses."""
        if any(node.checkpoint for node in self._nodes):
            yield f"{CHECKPOINT} checkpoint"
        if any(node.n for node in self._nodes):
            yield "V of n children's returns ± standard error"
        if any(self._advantage in node.advantages for node in self._nodes):
            yield f"A: advantage, {self._advantage}"


def _format_value(node: Node) -> str:
    """Return V(s) with its standard error and n, without spaces around `±` and `=`, where a line could be broken."""
    if node.value is None:
        return "V=–"
    error = "" if node.stderr is None else f"±{_format_number(node.stderr)}"
    return f"V={_format_number(node.value)}{error} n={node.n}"


def _format_failure(failure: Failure) -> str:
    """Return the first line of a failure's message that is not blank; the message may come from a sandbox."""
    lines = sanitise_log(failure.message).split("\n")
    return next((line.strip() for line in lines if line.strip()), sanitise_line(failure.type))


def _format_number(value: float) -> str:
    if abs(value) < 1e-9:
        return "0.0"  # rounding errors of sums that are 0
    if not 0.001 <= abs(value) < 1e6:
        return f"{value:.3g}"
    text = f"{value:.3f}".rstrip("0")
    return f"{text}0" if text.endswith(".") else text


def _format_signed(value: float) -> str:
    text = _format_number(value)
    return text if text == "0.0" or value < 0 else f"+{text}"


# --- width ----------------------------------------------------------------------------------------------


def _wrap_text(line: _Line, text: Text, console: Console) -> Iterator[Text]:
    """Yield the lines of a wrapped text, each behind its guide lines."""
    from rich.text import Text

    room = max(console.width - len(line.rest), min(_MIN_TEXT, console.width - _INDENT), 1)
    rest = line.rest if len(line.rest) <= console.width - room else line.rest[:-_INDENT]
    for number, part in enumerate(text.wrap(console, room)):
        yield Text(_cut_guide(rest if number else line.guide, console.width - room), style="dim").append_text(part)


def _cut_guide(guide: str, room: int) -> str:
    """Return guide lines cut at their beginning to `room` columns."""
    return guide if len(guide) <= room else "…" + guide[len(guide) - room + 1 :]
