"""What rollouts do while one of their awaits raises: together these scenarios come by every await."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from support.asked import ask, question
from support.in_process_worker import InProcessWorker
from support.made_up_sessions import hold_sessions
from support.raising import PASSED, RAISED
from temporalio import activity
from temporalio.client import WorkflowHandle, WorkflowQueryFailedError, WorkflowUpdateFailedError
from temporalio.service import RPCError

from benchflow.contracts import ids, temporal_names
from benchflow.contracts.ended import Restart
from benchflow.contracts.error_limit import ErrorLimit
from benchflow.contracts.job import RolloutProgress
from benchflow.contracts.rollback import Restore
from benchflow.contracts.rollout_records import Answer
from benchflow.errors import UnsupportedFeatureError
from benchflow.jobs import Job
from benchflow.jobs.start import ANY_RESULT, JobStart, start
from benchflow.paths import StatePaths
from benchflow.rescoring import RescoringRequest, rescore
from benchflow.store import Store
from benchflow.temporal import connect
from benchflow.worker import make_workers

Handle = WorkflowHandle[Any, Any]
Act = Callable[[InProcessWorker, list[Handle]], Awaitable[None]]
NOBODY = "benchflow-host-nobody"
OTHER = "benchflow-host-other"


@dataclass(frozen=True)
class Scenario:
    """What a rollout does while one of its awaits raises."""

    n_steps: int = 0
    """Of its task; 0 for one without."""
    branch: dict[str, Any] | None = None
    config: str = ""
    """Of its task, where that has no steps."""
    options: dict[str, Any] = field(default_factory=dict)
    """More of the job's configuration."""
    prepare: Callable[[InProcessWorker, list[str]], None] = lambda worker, rollouts: None
    """Called with the ids of the rollouts before they start."""
    act: Act | None = None
    """What somebody does to the rollouts while they run."""
    status: str = "passed"
    """How it ends if nothing raises."""
    categories: frozenset[str] = frozenset({"internal", "execute"})
    """The failures with which it may end."""
    n_measured: int = 1
    """Steps of which the reward is made; 0 where it is made of children's, or where there is none."""
    has_lost_host: bool = False
    """Whether sandboxes are on a host that is gone, where they stay."""
    again: Callable[[InProcessWorker, Job], Awaitable[Job]] | None = None
    """Starts, once the rollouts have ended, the job in which an await raises."""
    place: tuple[str, ...] = ()
    """Directory of that job, in the directory of the first one; empty where it is the same."""

    @property
    def keeps_checkpoints(self) -> bool:
        return self.options.get("keep") == "checkpoints"

    def task(self, worker: InProcessWorker) -> Path:
        if not self.n_steps:
            return worker.task("play-ready" if self.config else "play", self.config)
        path = worker.root / "tasks" / f"play-{self.n_steps}"
        return path if path.exists() else worker.stepped(self.n_steps, name=path.name)


# --- what rollouts meet --------------------------------------------------------------------------------------


def fill(worker: InProcessWorker, rollouts: list[str]) -> None:
    worker.context.slots.limit = 0


IGNORED: set[str] = set()
"""Rollouts that have their wait for a slot go on although it was cancelled."""


def fill_for_the_deaf(worker: InProcessWorker, rollouts: list[str]) -> None:
    fill(worker, rollouts)
    IGNORED.clear()
    wait = worker.context.slots.wait

    async def ignoring(*args: Any, **options: Any) -> None:
        while True:
            try:
                return await wait(*args, **options)
            except asyncio.CancelledError:
                IGNORED.add(activity.info().workflow_id or "")

    worker.patch.setattr(worker.context.slots, "wait", ignoring)


def lose_first(worker: InProcessWorker, rollouts: list[str]) -> None:
    worker.provider.elsewhere = {rollout: [NOBODY] for rollout in rollouts}


def lose_later(worker: InProcessWorker, rollouts: list[str]) -> None:
    worker.provider.elsewhere = {rollout: [OTHER] for rollout in rollouts}
    ask_later(worker, rollouts)


def refuse(worker: InProcessWorker, rollouts: list[str]) -> None:
    async def start(*given: Any, **options: Any) -> NoReturn:
        raise UnsupportedFeatureError("there are no sandboxes", key="sandbox", remedy="none")

    worker.patch.setattr(worker.provider, "start", start)


def hold(worker: InProcessWorker, rollouts: list[str]) -> None:
    worker.provider.held = True


def ask_once(worker: InProcessWorker, rollouts: list[str]) -> None:
    ask(worker, [question("q", "yes")])


def ask_later(worker: InProcessWorker, rollouts: list[str]) -> None:
    ask(worker, [question("q", "yes", "no")], step=1)


def drive_sessions(worker: InProcessWorker, rollouts: list[str]) -> None:
    hold_sessions(worker, "replay")


def load_sessions(worker: InProcessWorker, rollouts: list[str]) -> None:
    hold_sessions(worker, "load")


# --- what somebody does to them ------------------------------------------------------------------------------


def each(act: Callable[[Handle], Awaitable[None]]) -> Act:
    """Return what does something to each rollout."""

    async def acts(worker: InProcessWorker, rollouts: list[Handle]) -> None:
        await asyncio.gather(*map(act, rollouts))

    return acts


async def all_at(site: str, rollouts: list[Handle]) -> None:
    """Wait until all rollouts have come to an await, or have raised before."""
    while not all(one.id in RAISED or site in PASSED.get(one.id, {}) for one in rollouts):
        await asyncio.sleep(0.05)


async def free_slots(worker: InProcessWorker, rollouts: list[Handle]) -> None:
    """Free the slots of the host once all rollouts wait for one."""
    await all_at("hosts:wait_for_slot:0", rollouts)
    worker.context.slots.limit = 1000


async def cancel_as_slots_are_freed(worker: InProcessWorker, rollouts: list[Handle]) -> None:
    await all_at("hosts:wait_for_slot:0", rollouts)
    await asyncio.gather(*(rollout.cancel() for rollout in rollouts if rollout.id not in RAISED))
    while not all(one.id in RAISED or one.id in IGNORED for one in rollouts):
        await asyncio.sleep(0.05)
    worker.context.slots.limit = 1000


async def lose_host(worker: InProcessWorker, rollouts: list[Handle]) -> None:
    """Have a host on which all rollouts begin, and lose it while their agents ask."""
    client = await connect(worker.target)
    paths = StatePaths(worker.root / "other")
    context = replace(worker.context, queue=OTHER, host_id="other", paths=paths, client=client)
    async with make_workers(context, worker.records, worker.ongoing_work())[1]:
        await all_at("agent_turns:_await_user_answer:0", rollouts)
    await asyncio.gather(*map(answer, rollouts))


async def asked(rollout: Handle) -> None:
    """Wait until the agent of a rollout waits for an answer."""
    while True:
        with contextlib.suppress(RPCError, WorkflowQueryFailedError):
            progress = await rollout.query(temporal_names.PROGRESS, result_type=RolloutProgress)
            if progress.question is not None:
                return
        await asyncio.sleep(0.05)


async def answer(rollout: Handle) -> None:
    await asked(rollout)
    with contextlib.suppress(RPCError):
        await rollout.signal(temporal_names.ANSWER, Answer(question="q", option="yes"))


async def answer_late(rollout: Handle) -> None:
    """Answer once the clock of the deadline has seen that somebody is waited for."""
    while "clock:wait_for:0" not in PASSED.get(rollout.id, {}):
        await asyncio.sleep(0.05)
    await answer(rollout)


async def look(rollout: Handle) -> None:
    await asked(rollout)
    with contextlib.suppress(WorkflowUpdateFailedError, RPCError):
        await rollout.execute_update(temporal_names.SOFT_VERIFY)
    await answer(rollout)


async def restore(rollout: Handle) -> None:
    await asked(rollout)
    with contextlib.suppress(WorkflowUpdateFailedError, RPCError):
        await rollout.execute_update(temporal_names.RESTORE, Restore(node="n1"))
    await answer(rollout)


async def cancel(rollout: Handle) -> None:
    await asked(rollout)
    await rollout.cancel()


async def children_ask(rollout: Handle) -> None:
    """Wait until both children of a rollout ask, or have raised before; or it has, which may have lost it a child."""
    children = [ids.child_id(rollout.id, f"n1.{number}") for number in range(2)]

    def is_there(child: str) -> bool:
        return child in RAISED or "agent_turns:_await_user_answer:0" in PASSED.get(child, {})

    while rollout.id not in RAISED and not all(map(is_there, children)):
        await asyncio.sleep(0.05)


async def cancel_with_children(rollout: Handle) -> None:
    await children_ask(rollout)
    await rollout.cancel()


async def roll_back(worker: InProcessWorker, job: Job) -> Job:
    """Roll all rollouts back that have ended."""
    restarts = {index: Restart(node="n1", queue=worker.context.queue) for index in job.spec.indices}
    spec = job.spec.model_copy(update={"restarts": restarts})
    only = set(job.spec.indices)
    wanted = JobStart(
        spec, job.id, job.directory, ErrorLimit(), len(only), again=ANY_RESULT, only=only, puts_aside=False
    )
    return await start(wanted, Store.open())


async def score_again(worker: InProcessWorker, job: Job) -> Job:
    """Score all rollouts again that have ended."""
    started: list[Job] = []
    await rescore(job.directory.root, RescoringRequest(name="again", concurrency=32), on_start=started.append)
    return started[0]


KEPT = {"checkpoint": "per_turn", "portable": True}
AFTER_ONE = {"policy": {"kind": "after_steps", "steps": [1], "n": 2}}

SCENARIOS = {
    "linear": Scenario(),
    "steps": Scenario(2, n_measured=2),
    "ready": Scenario(config='[environment.healthcheck]\ncommand = "true"\n'),
    "refused": Scenario(
        prepare=refuse, status="errored", categories=frozenset({"internal", "unsupported"}), n_measured=0
    ),
    "slot": Scenario(prepare=fill, act=free_slots),
    "lost": Scenario(prepare=lose_first, has_lost_host=True),
    "slot-cancelled": Scenario(
        prepare=fill_for_the_deaf, act=cancel_as_slots_are_freed, status="cancelled", n_measured=0
    ),
    "lost-later": Scenario(
        2, {"policy": {"kind": "none"}} | KEPT, prepare=lose_later, act=lose_host, n_measured=2, has_lost_host=True
    ),
    "keep": Scenario(2, {"policy": {"kind": "none"}} | KEPT, n_measured=2),
    "tree": Scenario(2, AFTER_ONE | KEPT, n_measured=0),
    "driven": Scenario(2, AFTER_ONE, prepare=drive_sessions, n_measured=0),
    "loaded": Scenario(2, AFTER_ONE, prepare=load_sessions, n_measured=0),
    "adopt": Scenario(3, AFTER_ONE | {"horizon": 1, "then": "best"}, n_measured=0),
    "itself": Scenario(2, AFTER_ONE | {"then": "itself"}, n_measured=2),
    "grown": Scenario(2, {"policy": {"kind": "tree_grpo", "m": 1, "n": 1, "l": 1, "k": 2}}, n_measured=0),
    "own": Scenario(
        3,
        {
            "policy": {"kind": "custom", "policy": "own_branching:WherePoor", "options": {"below": 2}},
            "aggregate": "statistics:fmean",
            "max_depth": 1,
        },
        n_measured=0,
    ),
    "children-answer": Scenario(2, {"policy": {"kind": "ask_user"}}, prepare=ask_later, n_measured=0),
    "person": Scenario(prepare=ask_once, act=each(answer_late)),
    "look": Scenario(prepare=ask_once, act=each(look)),
    "restore": Scenario(2, {"policy": {"kind": "none"}} | KEPT, prepare=ask_later, act=each(restore), n_measured=2),
    "cancel": Scenario(prepare=ask_once, act=each(cancel), status="cancelled", n_measured=0),
    "cancel-tree": Scenario(
        2, AFTER_ONE | KEPT, prepare=ask_later, act=each(cancel_with_children), status="cancelled", n_measured=0
    ),
    "kept": Scenario(2, options={"keep": "checkpoints"}, n_measured=2),
    "rolled-back": Scenario(2, options={"keep": "checkpoints"}, n_measured=2, again=roll_back),
    "scored-again": Scenario(again=score_again, place=("rescored", "again")),
    "deadline": Scenario(
        options={"deadline_sec": 4},
        prepare=hold,
        status="errored",
        categories=frozenset({"internal", "deadline"}),
        n_measured=0,
    ),
}
