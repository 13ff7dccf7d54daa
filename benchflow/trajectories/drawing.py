"""A tree drawn in a terminal: its nodes, what they have earned, what they are worth, and what failed, in words.

A chain is drawn straight down, its children to the right of it. Nodes of which there is nothing to tell share a line
with the next of their chain; what does not fit into the width goes on in the next line.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from benchflow.contracts.rollout import Failure, Node, RolloutTree
from benchflow.trajectories.growth import chain_of, start_of

if TYPE_CHECKING:
    from rich.console import Console, Group
    from rich.text import Text

CHECKPOINT = "◆"

_INDENT = 3
_MIN_TEXT = 24
"""Columns for what is told of a node: guides that leave fewer are cut."""


class _Line(NamedTuple):
    """A run of nodes, or a child that has none. rest: in place of guide, where the line goes on in the next."""

    guide: str
    rest: str
    nodes: Sequence[Node]
    chain: str
    is_running: bool = False
    failure: Failure | None = None


def draw(tree: RolloutTree, *, width: int) -> Group:
    """The tree as rich renders it, within `width` columns."""
    from rich.console import Console, Group
    from rich.text import Text

    console = Console(width=width)
    shape = _Shape(tree)
    lines = list(shape.lines())
    told = _Told(tree, has_full_names=_fit_with_full_names(lines, width))
    leaves = f"{len(tree.leaves)} {'leaf' if len(tree.leaves) == 1 else 'leaves'}"
    title = Text.assemble((tree.rollout, "bold"), f"  {len(tree.nodes)} nodes, {leaves}")
    drawn = list(title.wrap(console, width))
    for line in lines:
        drawn += _fitted(line, told.text(line), console)
    if legend := " · ".join(told.legend()):
        drawn += Text(legend, style="dim").wrap(console, width)
    for part in drawn:
        part.rstrip()
    return Group(*drawn)


# --- shape ----------------------------------------------------------------------------------------------


class _Shape:
    """What is drawn below what."""

    def __init__(self, tree: RolloutTree) -> None:
        self._root = next(node for node in tree.nodes if node.id == tree.root)
        self._failed = {chain: failure for node in tree.nodes for chain, failure in node.failed.items()}
        self._children: dict[str, list[Node]] = defaultdict(list)
        for node in tree.nodes:
            if node.parent is not None:
                self._children[node.parent].append(node)

    def lines(self) -> Iterator[_Line]:
        # What is still to be drawn, the next at the end: of each the guide before it and the column of its chain.
        waiting: list[tuple[str, str, Node | _Line]] = [("", "", self._root)]
        while waiting:
            guide, column, at = waiting.pop()
            if isinstance(at, _Line):
                yield at._replace(guide=guide, rest=column)
                continue
            run = self._run_from(at)
            straight, branches = self._below(run[-1])
            yield self._line(guide, column + ("│" if branches else " ").ljust(_INDENT), run)
            if straight is not None:
                waiting.append((column, column, straight))
            for number, branch in enumerate(reversed(branches)):
                is_last = number == 0 and straight is None
                waiting.append((column + ("└─ " if is_last else "├─ "), column + ("   " if is_last else "│  "), branch))

    def _line(self, guide: str, rest: str, run: Sequence[Node]) -> _Line:
        chain = chain_of(run[0].id)
        begins = run[0].parent is not None and start_of(chain) == run[0].parent
        return _Line(guide, rest, run, chain, failure=self._failed.get(chain) if begins else None)

    def _run_from(self, node: Node) -> list[Node]:
        """It and those after it in its chain, up to the first of which there is something to tell."""
        run = [node]
        while _is_quiet(run[-1]):
            straight, branches = self._below(run[-1])
            if straight is None or branches or chain_of(straight.id) != chain_of(node.id):
                break
            if run[-1].role not in (None, straight.role):
                break
            run.append(straight)
        return run

    def _below(self, node: Node) -> tuple[Node | None, list[Node | _Line]]:
        """The node by which its chain goes on, and its children: those that have no nodes are lines of their own."""
        children = self._children[node.id]
        straight = next((child for child in children if start_of(chain_of(child.id)) != node.id), None)
        branches: dict[str, Node | _Line] = {
            **{chain: _Line("", "", (), chain, is_running=True) for chain in node.pending},
            **{chain: _Line("", "", (), chain, failure=failure) for chain, failure in node.failed.items()},
        }
        for child in children:
            if child is not straight:
                branches[chain_of(child.id) if start_of(chain_of(child.id)) == node.id else child.id] = child
        return straight, [branches[chain] for chain in sorted(branches, key=_place)]


def _place(chain: str) -> tuple[int, str]:
    number = chain.rpartition(".")[2]
    return (int(number) if number.isdecimal() else 0, chain)


def _is_quiet(node: Node) -> bool:
    """Whether there is nothing to tell of it."""
    return not (node.rewards or node.checkpoint or node.n or node.failed or node.pending) and (
        node.returns is None and node.value is None
    )


# --- words ----------------------------------------------------------------------------------------------


def _fit_with_full_names(lines: Sequence[_Line], width: int) -> bool:
    """Whether the full names of all nodes leave half of the width."""
    return all(len(line.guide) + len(line.nodes[0].id if line.nodes else line.chain) <= width // 2 for line in lines)


class _Told:
    """What is told of a line."""

    def __init__(self, tree: RolloutTree, *, has_full_names: bool) -> None:
        self._has_full_names = has_full_names
        self._nodes = tree.nodes
        self._parents = {node.parent for node in tree.nodes}
        self._has_roles = len({node.role for node in tree.nodes} - {None}) > 1
        self._advantage = ""  # which of them; alone a leaf has nothing to be compared with
        if sum(node.returns is not None for node in tree.leaves) > 1:
            self._advantage = "tree_grpo" if any(node.tree for node in tree.nodes) else "grpo"

    def text(self, line: _Line) -> Text:
        from rich.text import Text

        text = Text(self._name(line), style="" if line.nodes else "dim")
        if line.nodes:
            node = line.nodes[-1]
            if node.checkpoint:
                text.append(f" {CHECKPOINT}", "cyan")
            for fact, style in self._facts(node):
                text.append("  ").append(fact, style)
        if line.failure is not None:
            text.append("  ").append(f"failed: {_sentence(line.failure)}", "red")
        elif line.is_running:
            text.append("  ").append("still running", "dim")
        return text

    def _name(self, line: _Line) -> str:
        if not line.nodes:
            return line.chain if self._has_full_names else _relative(line.chain, start_of(line.chain) or "")
        first, last = line.nodes[0], line.nodes[-1]
        name = first.id
        if not self._has_full_names:
            is_first = start_of(line.chain) == first.parent
            name = _relative(first.id, first.parent or "") if is_first else first.id.rpartition("/")[2]
        return name if first is last else f"{name} – {last.id.rpartition('/')[2]}"

    def _facts(self, node: Node) -> Iterator[tuple[str, str]]:
        if self._has_roles and node.role:
            yield node.role, "dim"
        reward = (node.rewards or {}).get("reward")
        if reward is not None:
            yield f"reward={_number(reward)}", "green" if reward > 0 else ""
        if node.returns is not None and node.returns != reward:
            yield f"return={_number(node.returns)}", "green" if node.returns > 0 else ""
        if node.n or node.failed or node.pending:
            yield _value(node), "bold"
        if self._advantage in node.advantages and (node.n or node.id not in self._parents):
            yield f"A={_signed(node.advantages[self._advantage])}", "magenta"

    def legend(self) -> Iterator[str]:
        if any(node.checkpoint for node in self._nodes):
            yield f"{CHECKPOINT} checkpoint"
        if any(node.n for node in self._nodes):
            yield "V of n children's returns ± standard error"
        if any(self._advantage in node.advantages for node in self._nodes):
            yield f"A: advantage, {self._advantage}"


def _value(node: Node) -> str:
    """Without spaces where no line may be broken."""
    if node.value is None:
        return "V=–"
    error = "" if node.stderr is None else f"±{_number(node.stderr)}"
    return f"V={_number(node.value)}{error} n={node.n}"


def _relative(name: str, start: str) -> str:
    return name.removeprefix(start)


def _sentence(failure: Failure) -> str:
    """What failed, in one line; it may come from a sandbox, which must not steer the terminal."""
    first = next((line.strip() for line in failure.message.splitlines() if line.strip()), failure.type)
    return "".join(char if char.isprintable() else " " for char in first)


def _number(value: float) -> str:
    if abs(value) < 1e-9:
        return "0.0"  # what is left of sums that come to nothing
    if not 0.001 <= abs(value) < 1e6:
        return f"{value:.3g}"
    text = f"{value:.3f}".rstrip("0")
    return f"{text}0" if text.endswith(".") else text


def _signed(value: float) -> str:
    text = _number(value)
    return text if text == "0.0" or value < 0 else f"+{text}"


# --- width ----------------------------------------------------------------------------------------------


def _fitted(line: _Line, text: Text, console: Console) -> Iterator[Text]:
    from rich.text import Text

    room = max(console.width - len(line.rest), min(_MIN_TEXT, console.width - _INDENT), 1)
    rest = line.rest if len(line.rest) <= console.width - room else line.rest[:-_INDENT]
    for number, part in enumerate(text.wrap(console, room)):
        yield Text(_cut(rest if number else line.guide, console.width - room), style="dim").append_text(part)


def _cut(guide: str, room: int) -> str:
    return guide if len(guide) <= room else "…" + guide[len(guide) - room + 1 :]
