"""What a kill for want of memory makes of a turn: by which count, and by what the agent did afterwards."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from support.idle_sandbox import IdleSandbox

from benchflow.contracts.failures import failure_of
from benchflow.contracts.memory_use import MemoryUse
from benchflow.contracts.rollout_records import Step, TurnResult
from benchflow.contracts.sandbox import SandboxRef
from benchflow.contracts.task import Task
from benchflow.errors import (
    AgentExitError,
    AgentTimeoutError,
    BenchFlowError,
    BudgetExhaustedError,
    SandboxLostError,
    SandboxMemoryError,
    ServiceDiedError,
)
from benchflow.hosting.out_of_memory import (
    TurnMemory,
    explain_agent_errors,
    explain_losses,
    make_session_note,
)
from benchflow.tasks import init_task, load_task
from benchflow.trajectories.journal import NodeWriter

EXITED = AgentExitError("the agent ended during its turn: signal SIGKILL", log_tail="its last words")


class Counting(IdleSandbox):
    """A sandbox whose kernel has killed so often. kills: None where nobody counts."""

    def __init__(self) -> None:
        super().__init__(SandboxRef(provider="noop", name="s", handle="h", host_id="", queue="", workdir="/"))
        self.kills: int | None = 0

    async def memory_use(self) -> MemoryUse | None:
        return None if self.kills is None else MemoryUse(kills=self.kills, limit_mb=96, peak_mb=96)


class Rollout:
    """One rollout's sandbox and notes, as each attempt of its activities finds them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.sandbox = Counting()
        self.task: Task = load_task(init_task(root, "hello"))
        self.hosted: Any = SimpleNamespace(
            sandbox=self.sandbox, ref=self.sandbox.ref, task=self.task, sessions=root / "sessions" / "s"
        )
        self.writer = self.turn(0)[1]

    def turn(self, index: int, *, session: int | None = 0) -> tuple[TurnMemory, NodeWriter]:
        """A turn, for an attempt of its own."""
        step = Step(index=index, agent="any")
        work: Any = SimpleNamespace(
            step=step, before=None, session=None if session is None else SimpleNamespace(index=session)
        )
        writer = NodeWriter(self.root / "trajectory.jsonl", f"n{index + 1}", "agent")
        return TurnMemory(self.hosted, work, writer), writer


@pytest.fixture
def rollout(tmp_path: Path) -> Rollout:
    return Rollout(tmp_path)


def failed(error: BenchFlowError) -> TurnResult:
    return TurnResult(stop_reason="error", failure=failure_of(error))


async def test_a_kill_before_another_attempt_takes_the_turn_over_counts(rollout: Rollout) -> None:
    await rollout.turn(0)[0].begin()
    rollout.sandbox.kills = 1
    judged = await rollout.turn(0)[0].judge(failed(EXITED))
    failure = judged.failure
    assert failure is not None
    assert (failure.type, failure.category, failure.phase) == ("SandboxMemoryError", "sandbox_memory", "execute")
    assert failure.message == (
        "the kernel killed 1 process of the sandbox at its memory limit (limit 96 MiB, peak 96 MiB), and "
        "the agent ended during its turn: signal SIGKILL"
    )
    assert (failure.file, failure.key) == ("hello/task.md", "sandbox.memory_mb")
    assert (failure.log_tail, failure.retryable) == ("its last words", False)
    assert "raise sandbox.memory_mb" in str(failure.remedy)


@pytest.mark.parametrize("kills", [3, None])
async def test_what_was_killed_before_the_turn_or_is_not_counted_explains_nothing(
    rollout: Rollout, kills: int | None
) -> None:
    rollout.sandbox.kills = kills
    memory, writer = rollout.turn(0, session=None)
    await memory.begin()
    for turn in (failed(EXITED), TurnResult(stop_reason="end_turn")):
        assert await memory.judge(turn) == turn
    assert list(writer.written()) == []


@pytest.mark.parametrize(("has_spoken", "category"), [(False, "sandbox_memory"), (True, "agent_exit")])
async def test_an_agent_may_be_killed_between_two_turns(rollout: Rollout, has_spoken: bool, category: str) -> None:
    first, _ = rollout.turn(0)
    await first.begin()
    await first.judge(TurnResult(stop_reason="end_turn"))
    # While the verifier of the first turn runs.
    rollout.sandbox.kills = 1
    memory, writer = rollout.turn(1)
    await memory.begin()
    writer.add([{"type": "user_message", "text": "go"}])
    writer.add([{"type": "agent_message", "text": "I am alive"}] * has_spoken)
    failure = (await memory.judge(failed(EXITED))).failure
    assert failure is not None and failure.category == category


@pytest.mark.parametrize(
    ("error", "category", "warned"),
    [
        (AgentTimeoutError("the agent said nothing"), "sandbox_memory", False),
        (BudgetExhaustedError("it has used all"), "budget_exhausted", True),
        (ServiceDiedError("the service db ended"), "service", False),
        (None, None, True),
    ],
    ids=["timeout", "budget", "service", "none"],
)
async def test_a_kill_in_a_turn_explains_its_failure_or_is_a_warning(
    rollout: Rollout, error: BenchFlowError | None, category: str | None, warned: bool
) -> None:
    memory, _ = rollout.turn(0)
    await memory.begin()
    rollout.sandbox.kills = 2
    turn = await memory.judge(TurnResult(stop_reason="end_turn") if error is None else failed(error))
    assert (turn.failure and turn.failure.category) == category
    said = "the kernel killed 2 processes of the sandbox at its memory limit (limit 96 MiB, peak 96 MiB)"
    assert turn.warnings == ([f"{said} during a turn; the agent went on"] if warned else [])
    assert turn.failure is None or warned or said in turn.failure.message


async def test_an_agent_killed_as_it_opens_its_session_is_told_by_the_first_attempts_count(rollout: Rollout) -> None:
    note = make_session_note(rollout.hosted, 0)
    for _ in range(2):
        with pytest.raises(SandboxMemoryError if rollout.sandbox.kills else AgentExitError, match="SIGKILL"):
            async with explain_agent_errors(rollout.hosted, note):
                raise EXITED
        rollout.sandbox.kills = 1


@pytest.mark.parametrize(("kills", "category"), [(0, "sandbox_lost"), (None, "sandbox_lost"), (1, "sandbox_memory")])
async def test_a_sandbox_that_ended_after_a_kill_was_short_of_memory(kills: int | None, category: str) -> None:
    sandbox = Counting()
    sandbox.kills = kills
    with pytest.raises(SandboxLostError) as caught:
        async with explain_losses(sandbox):
            raise SandboxLostError("the sandbox no longer runs")
    assert caught.value.category == category
