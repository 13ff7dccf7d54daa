"""What a terminal shows of a running job."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from rich.console import Console

from benchflow.cli.watch import Board, Labels
from benchflow.contracts import ids
from benchflow.contracts.base import ArtifactRef
from benchflow.contracts.counts import Counts, RewardSums
from benchflow.contracts.job import AgentSpec, JobProgress, JobSpec, RolloutProgress, TaskRef
from benchflow.contracts.rollout_records import Failure, RolloutOutcome

JOB = "job/j-12345678"
PACK = ArtifactRef(uri="file:///x", sha256="0" * 64, size=0)
LONG = "a-task-with-quite-a-long-name-that-does-not-end-before-the-line-does-and-goes-on"
AGENT = "claude-agent-acp:claude-haiku-4-5"
NOW = 1_700_000_000.0


@pytest.fixture(autouse=True)
def _still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time stands still, however long it takes to draw."""
    clock = SimpleNamespace(time=lambda: NOW, monotonic=lambda: 1.0)
    monkeypatch.setattr("benchflow.cli.watch.time", clock)


def spec(repeats: int = 1) -> JobSpec:
    tasks = [TaskRef(name=name, digest="d", pack=PACK) for name in ("short", LONG)]
    return JobSpec(name="j", tasks=tasks, agents=[AgentSpec.parse(AGENT), AgentSpec(name="oracle")], repeats=repeats)


def rollout(task: str, agent: str = AGENT, repeat: int = 0) -> str:
    return ids.rollout_id(JOB, task, agent, repeat)


def progress() -> JobProgress:
    failure = Failure(type="ImageBuildError", category="image_build", message="no")
    done = RolloutOutcome(id=rollout("short"), index=0, attempt=1, status="errored", error=failure, seconds=3.21)
    agents = {AGENT: RewardSums(n=3, total=0.75), "oracle": RewardSums(n=2, total=2.0)}
    counts = Counts(passed=2, errored=1, rewarded=5, agents=agents)
    return JobProgress(
        id=JOB,
        name="j",
        total=10,
        counts=counts,
        open_count=2,
        open=[rollout(LONG), rollout(LONG, "oracle")],
        waiting=4,
        concurrency=2,
        paused=False,
        cancelled=False,
        recent=[done],
    )


def draw(
    width: int,
    troubles: dict[str, str] | None = None,
    heard: JobProgress | None = None,
    attempt: int = 1,
    of: JobSpec | None = None,
) -> list[str]:
    board = Board(SimpleNamespace(id=JOB, spec=of or spec()), width, 24)  # type: ignore[arg-type]
    heard = heard or progress()
    board.troubles.of_rollouts = troubles or {}
    board.hear(heard, {heard.open[0]: RolloutProgress(phase="provision", since=NOW - 7, attempt=attempt)})
    screen = Console(width=width, height=24, highlight=False)
    with screen.capture() as captured:
        screen.print(board)
    return [line.rstrip() for line in captured.get().splitlines()]


@pytest.mark.parametrize("width", [80, 120])
def test_every_rollout_has_one_line_that_fits(width: int) -> None:
    lines = draw(width)
    assert len(lines) == 6
    assert max(map(len, lines)) <= width
    assert lines[0].split()[:2] == ["!", "short"] and lines[0].endswith("3.2 s  image_build")
    assert "provision     7 s" in lines[1]


@pytest.mark.parametrize("width", [80, 120])
def test_a_long_reason_for_a_retry_leaves_the_names_alone(width: int) -> None:
    reason = "verify, attempt 6: DiskFullError: no space left: [Errno 28] No space left on device: '/jobs/a/b'"
    plain, lines = draw(width), draw(width, {rollout(LONG): reason})
    assert max(map(len, lines)) <= width
    assert [name[:9] for name in lines[1].split()[1:3]] == [name[:9] for name in plain[1].split()[1:3]]
    assert "verify, att" in lines[1] and lines[1].endswith("…")


def test_a_rollout_that_is_run_again_is_shown_with_the_reason_and_its_attempt() -> None:
    lost = Failure(type="SandboxLostError", category="sandbox_lost", message="gone")
    ended = RolloutOutcome(id=rollout(LONG), index=1, attempt=1, status="errored", error=lost, seconds=9)
    lines = draw(160, heard=progress().model_copy(update={"run_again": [ended], "recent": []}), attempt=2)
    assert lines[0].split()[0] == "!" and "9.0 s  run again · sandbox" in lines[0]
    assert lines[1].endswith("7 s  attempt 2")


def test_the_totals_say_what_is_done_and_how_well_each_agent_does() -> None:
    lines = draw(80)
    assert lines[-3].strip() == "4 waiting"
    assert "4/10  2 passed  1 errored  1 from before  0:00" in lines[-2]
    assert lines[-1] == f"   mean reward  {AGENT} 0.25 n=3 · oracle 1.0 n=2"


def test_the_only_agents_mean_is_in_the_totals() -> None:
    counts = Counts(passed=1, agents={"oracle": RewardSums(n=2, total=1.5, n_values=1, total_value=0.5)})
    heard = progress().model_copy(update={"counts": counts})
    alone = spec().model_copy(update={"agents": [AgentSpec(name="oracle")]})
    assert "mean 0.75 n=2  mean V 0.5 n=1  0:00" in draw(120, heard=heard, of=alone)[-1]


def test_rollouts_are_labelled_by_task_agent_and_repeat() -> None:
    labels = Labels(JOB, spec(repeats=120))
    for repeat in (0, 9, 10, 99, 100, 119):
        assert labels.of(rollout(LONG, repeat=repeat)) == (f"{LONG} #{repeat}", AGENT)
    assert Labels(JOB, spec()).of(rollout("short", "oracle")) == ("short", "oracle")


def test_what_is_retried_and_what_is_stuck_is_shown_with_its_attempt_and_its_reason() -> None:
    retried = "execute, attempt 7: DaemonUnavailableError: no Docker daemon answers\n" + "more of it\n" * 99
    stuck = "workflow task, attempt 12, for 90 s: KeyError: 'broken'"
    lines = draw(160, {rollout(LONG): retried, rollout(LONG, "oracle"): stuck})
    assert len(lines) == 6 and max(map(len, lines)) <= 160
    assert "execute, attempt 7: DaemonUnavailableError: no " in lines[1]
    assert stuck in lines[2]


async def test_a_job_that_cannot_answer_itself_has_what_it_fails_at_shown() -> None:
    async def trouble(workflow_id: str) -> str | None:
        return "workflow task, attempt 12: KeyError: gone" if workflow_id == JOB else None

    job = SimpleNamespace(id=JOB, spec=spec(), trouble=trouble)
    board = Board(job, 80, 24)  # type: ignore[arg-type]
    await board.troubles.ask([], None)
    screen = Console(width=80, height=24, highlight=False)
    with screen.capture() as captured:
        screen.print(board)
    assert "waiting for the worker" in captured.get() and "attempt 12: KeyError: gone" in captured.get()
