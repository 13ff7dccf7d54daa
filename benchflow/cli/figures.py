"""Each agent's figures for display: counts, mean reward with its interval and n, pass@k, errors, phase times.

No figure is of several agents together: the tasks that `oracle` solves say nothing about the other agents.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from benchflow.cli.screen import fit, format_reward, format_seconds, make_table, show_place

if TYPE_CHECKING:
    from benchflow.cli.terminal import Screen
    from benchflow.results.intervals import Interval
    from benchflow.results.summary import AgentSummary, Summary

MAX_AGENT_WIDTH = 32

_METHODS = {"wilson": "Wilson", "wilson_by_task": "Wilson by task", "t_by_task": "t by task", "t": "t", None: ""}
"""Short names of the methods of intervals."""

_LEGEND = {
    "wilson": "Wilson: for rewards of 0 and 1; assumes that rollouts are independent",
    "wilson_by_task": "Wilson by task: repeats count as far as they differ; assumes that tasks are independent",
    "t_by_task": "t by task: Student's t, cut at the rewards' range; assumes that tasks are independent",
    "t": "t: Student's t over the repeats of one task, cut at the rewards' range",
}
"""Explanation of each method, printed below the table."""


def show_agents(summary: Summary, screen: Screen) -> None:
    """Print a table of the agents, a table of their pass@k, and a legend of the intervals."""
    from benchflow.cli.terminal import Text

    right: dict[str, Any] = {"justify": "right", "no_wrap": True}
    agents = summary.agents
    known = ("scored", "cancelled", "not_started", "not_run")
    rare = [name for name in known if any(getattr(about, name) for about in agents.values())]
    counts = ["passed", "failed", "errored", *rare]
    rows = make_table(
        ("agent", {"max_width": MAX_AGENT_WIDTH}),
        *((name.replace("_", " "), right) for name in counts),
        ("mean reward", right),
        ("n", right),
        ("95 %", {"no_wrap": True}),
        ("", {"no_wrap": True}),
    )
    methods = set()
    for agent, about in agents.items():
        name, numbers = fit(agent), [str(getattr(about, count)) for count in counts]
        for sign, found in _list_means(about):
            methods.add(found.method)
            worth = Text(f"{sign}{format_reward(found.mean)}", "bold")
            rows.add_row(name, *numbers, worth, str(found.n), _format_ends(found), Text(_METHODS[found.method], "dim"))
            name, numbers = Text(""), [""] * len(counts)
    if agents:
        screen.print(rows)
        _show_pass_at_k(summary, screen)
    for method, text in _LEGEND.items():
        if method in methods:
            screen.print(Text(text, "dim"))
    if summary.n_values:
        screen.print(Text("V: V(s) of rollouts that branched; counted as passed or failed, in no pass@k", "dim"))
    if any(about.errored for about in agents.values()):
        screen.print(Text("errored rollouts have no reward: they are in no mean and no pass@k", "dim"))


def show_details(summary: Summary, screen: Screen) -> None:
    """Print each agent's errors by category, its phase times, and the means by key of rewards without a scalar."""
    _show_each("errors", summary, screen, lambda it: [f"{name} {count}" for name, count in it.errors.items()])
    _show_each("scored", summary, screen, lambda it: [f"after {k} {v}" for k, v in it.errors_of_scored.items()])
    _show_each("phases", summary, screen, lambda it: [f"{k} {format_seconds(v)}" for k, v in it.phase_seconds.items()])
    _show_each("rewards", summary, screen, _format_keys)


def format_means(summary: Summary) -> list[str]:
    """Return the means of a job's only agent, as `mean reward 0.944 n=9 (95 %: 0.81 … 1.0)`; none of several agents."""
    if len(summary.agents) != 1:
        return []
    (about,) = summary.agents.values()
    named = [("mean V(s)" if sign else "mean reward", found) for sign, found in _list_means(about) if found.n]
    return [f"{name} {format_mean(found)}{_in_brackets(found)}" for name, found in named]


def format_mean_cell(summary: Summary) -> str:
    """Return a job's mean for a list of jobs: `0.75 n=4`, `V 0.4 n=4`; `3 agents` for several; `–` if there is none."""
    if len(summary.agents) > 1:
        return f"{len(summary.agents)} agents"
    found = [(sign, found) for about in summary.agents.values() for sign, found in _list_means(about) if found.n]
    return " ".join(f"{sign}{format_mean(each)}" for sign, each in found) or "–"


def format_mean(found: Interval) -> str:
    """Return a mean with its n, as `0.944 n=9`."""
    return f"{format_reward(found.mean)} n={found.n}"


def _list_means(about: AgentSummary) -> list[tuple[str, Interval]]:
    """Return an agent's means, each with the prefix of its kind: empty for measured rewards, `V ` for V(s).

    The mean of rewards is left out if there are only V(s).
    """
    values = [("V ", about.value)] if about.value is not None else []
    return [("", about.reward), *values] if about.reward.n or not values else values


def _format_ends(found: Interval) -> str:
    """Return the ends of an interval as `0.81 … 1.0`; `–` if there is none."""
    return (
        "–" if found.low is None or found.high is None else f"{format_reward(found.low)} … {format_reward(found.high)}"
    )


def _in_brackets(found: Interval) -> str:
    """Return an interval as it follows its mean, in brackets; empty if there is none."""
    return f" (95 %: {_format_ends(found)})" if found.method else ""


def _show_pass_at_k(summary: Summary, screen: Screen) -> None:
    ks = sorted({k for about in summary.agents.values() for k in about.pass_at_k}, key=int)
    if not ks:
        return
    right: dict[str, Any] = {"justify": "right", "no_wrap": True}
    rows = make_table(("agent", {"max_width": MAX_AGENT_WIDTH}), *((f"pass@{k}", right) for k in ks), ("tasks", right))
    for agent, about in summary.agents.items():
        cells = [format_reward(about.pass_at_k.get(k)) for k in ks]
        rows.add_row(fit(agent), *cells, str(about.n_pass_tasks))
    screen.print(rows)


def _format_keys(about: AgentSummary) -> list[str]:
    """Return an agent's means by key, as texts; empty if its rewards have a scalar that stands for the keys."""
    if not about.scored:
        return []
    means = [f"{key} {format_reward(one.mean)} n={one.n}" for key, one in about.by_key.items()]
    return [*means, f"({about.scored} without a scalar reward)"]


def _show_each(name: str, summary: Summary, screen: Screen, parts_of: Callable[[AgentSummary], list[str]]) -> None:
    """Print one line per agent, labelled `name`, with the texts that `parts_of` returns, unless there are none.

    The agent's name is only printed if there are several.
    """
    for agent, about in summary.agents.items():
        parts = parts_of(about)
        whose = f"{agent}:  " if len(summary.agents) > 1 else ""
        show_place(name, whose + "   ".join(parts) if parts else None, screen)
