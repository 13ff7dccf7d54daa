"""A job in Temporal's Web UI: its search attributes, and its progress as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

from benchflow.contracts import temporal_names
from benchflow.contracts.counts import Counts
from benchflow.contracts.job import JobInput
from benchflow.contracts.rewards import shown_keys
from benchflow.contracts.rollout_records import RolloutOutcome
from benchflow.sanitise import sanitise_markdown


def make_job_attributes(name: str) -> TypedSearchAttributes:
    """Return the search attributes with which a job's workflow starts.

    Args:
        name: Name of the job.
    """
    return TypedSearchAttributes([SearchAttributePair(SearchAttributeKey.for_keyword(temporal_names.ATTR_JOB), name)])


def format_job_details(job: JobInput, counts: Counts, n_open: int, recent: Iterable[RolloutOutcome]) -> str:
    """Return a job's progress as Markdown: counts, mean rewards by agent, and a table of the latest outcomes.

    Args:
        job: Input of the job's workflow.
        counts: Rollouts that have ended, by status.
        n_open: Number of open rollouts.
        recent: Latest outcomes, oldest first.
    """
    lines = [
        f"**{job.name}**: {counts.finished} of {job.total} done, {n_open} running",
        "",
        f"{counts.passed} passed · {counts.failed} failed · {counts.errored} errored · {counts.cancelled} cancelled"
        + (f" · {counts.scored} scored by several keys" if counts.scored else "")
        + (f" · {counts.not_started} not started" if counts.not_started else ""),
        *_format_means(job, counts),
        "",
        "| rollout | status | reward | seconds |",
        "|---|---|---|---|",
    ]
    for outcome in recent:
        measured = (outcome.rewards or {}).get("reward")
        reward = f"{measured:g}" if measured is not None else sanitise_markdown(shown_keys(outcome.rewards))
        if measured is not None and outcome.reward_kind == "value":
            reward = f"V {reward}"
        name = outcome.id.partition("/r/")[2]
        lines.append(f"| `{name}` | {outcome.status} | {reward} | {outcome.seconds:.1f} |")
    return "\n".join(lines)


def _format_means(job: JobInput, counts: Counts) -> Iterator[str]:
    """Yield an empty line, and a line with the mean rewards, for each agent that has any. Agents are not pooled."""
    for agent in job.agents:
        sums = counts.agents.get(agent)
        parts = []
        if sums is not None and sums.n:
            parts.append(f"mean reward {sums.total / sums.n:.3f} (n={sums.n})")
        if sums is not None and sums.n_values:
            parts.append(f"mean V(s) {sums.total_value / sums.n_values:.3f} (n={sums.n_values})")
        if parts:
            yield ""
            yield f"{sanitise_markdown(agent)}: {', '.join(parts)}"
