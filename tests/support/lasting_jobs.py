"""Jobs with rollouts of every kind, each in a part that lasts, which outlive outages; and one that nothing disturbs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from support.embedded import EmbeddedStack
from support.growing_task import assert_is_whole, branch_after, step, write_growing_task
from support.lasting_task import (
    EVERY_SEC,
    LAST_ROUNDS,
    PART,
    Part,
    calls_of,
    moments_of,
    talk_of,
    times_of,
    write_lasting_task,
)
from support.outages import Kind, Window, last, outage
from support.scored import assert_nothing_is_left, finish, rows, submit_job
from temporalio.service import RPCError

from benchflow.contracts.job import AgentSpec
from benchflow.contracts.rollout_records import RolloutResult
from benchflow.jobs import Job
from benchflow.paths import RolloutPaths
from benchflow.testing.waiting import until

LASTING: dict[str, tuple[Part, bool]] = {
    "solution": ("solution", False),
    "verifier": ("verifier", False),
    "clean-room": ("verifier", True),
}
"""Tasks of the oracle: the part that lasts, and whether its verifier has a sandbox of its own."""


@dataclass
class Mixture:
    """Rollouts of every kind that stand before the part that lasts, and an undisturbed one that is over.

    rounds: how many each lasting part has. lasting: the names of the oracle's tasks, of `LASTING`. undisturbed: the
    mixture that has the undisturbed one; None for this one.
    """

    stack: EmbeddedStack
    agents: Job
    oracles: Job
    tree: Job
    rounds: int
    lasting: Sequence[str]
    undisturbed: Mixture | None = None

    @property
    def jobs(self) -> list[Job]:
        return [self.agents, self.oracles, self.tree]

    async def undisturbed_is_over(self) -> None:
        """Wait for the rollout that nothing may disturb, if it is one of these."""
        if self.undisturbed is None:
            await until(lambda: self.agents.directory.results.exists() and rows(self.agents), seconds=600)

    def act(self) -> None:
        """Let the parts that last begin."""
        self.stack.let_go(PART)

    async def finish(self) -> None:
        """Let all parts go, and wait for the jobs."""
        for held in (LAST_ROUNDS, step(1)):
            self.stack.let_go(held)
        for job in self.jobs:
            await finish(job)


async def begin(
    stack: EmbeddedStack, tmp_path: Path, agent: AgentSpec, rounds: int, lasting: Sequence[str] = tuple(LASTING)
) -> Mixture:
    """Return the mixture when all of it is about to act."""
    mixture = await submit_mixture(stack, tmp_path, agent, rounds, lasting)
    await mixture.undisturbed_is_over()
    return mixture


async def submit_mixture(
    stack: EmbeddedStack,
    tmp_path: Path,
    agent: AgentSpec,
    rounds: int,
    lasting: Sequence[str],
    undisturbed: Mixture | None = None,
) -> Mixture:
    """Return the mixture when all of it is about to act but the undisturbed rollout, which is let go.

    undisturbed: another mixture of as many rounds, which has that one.
    """
    agents = 1 if undisturbed is not None else 2
    tasks, jobs = tmp_path / "tasks", tmp_path / "jobs"
    turn = write_lasting_task(tasks, "turn", "turn", rounds)
    oracles = [
        write_lasting_task(tasks, name, part, rounds, in_clean_room=has_room)
        for name, (part, has_room) in LASTING.items()
        if name in lasting
    ]
    growing = write_growing_task(tasks, 2, held=[1])
    once = {"retry": {"max_retries": 0}}
    mixture = Mixture(
        stack,
        await submit_job(stack, [turn], jobs, "agents", agents=[agent], repeats=agents, **once),
        await submit_job(stack, oracles, jobs, "oracles", **once),
        await submit_job(stack, [growing], jobs, "tree", branch=branch_after([1]), **once),
        rounds,
        lasting,
        undisturbed,
    )
    await stack.in_step(step(1), 2)
    begun = await stack.in_step(PART, agents + len(lasting))
    if undisturbed is None:
        first = next(seen for seen in begun if "/r/turn/" in seen.workflow)
        for held in (PART, LAST_ROUNDS):
            stack.let_go(held, [first])
    return mixture


async def heard_since(job: Job, moment: float) -> bool:
    """Whether the server has heard of every activity since then."""
    client = job.engine.client
    try:
        async for workflow in client.list_workflows('ExecutionStatus="Running"'):
            description = await client.get_workflow_handle(workflow.id).describe()
            for pending in description.raw_description.pending_activities:
                if pending.last_heartbeat_time.ToMilliseconds() / 1000 < moment:
                    return False
    except RPCError:
        # It is about to come back, or the workflow has just ended.
        return False
    return True


def result_of(job: Job, name: str) -> list[RolloutResult]:
    """The results of a task."""
    return [result for result in job.results() if result.task_name == name]


def assert_passed(mixture: Mixture) -> None:
    """Each rollout has one row, of one attempt in one sandbox."""
    found = [row for job in mixture.jobs for row in rows(job)]
    problems = {row["rollout_name"]: row["error"] or row["verifier_error"] or row["reward"] for row in found}
    said = [(row["status"], row["reward"], row["attempt"], row["error"]) for row in found]
    total = sum(job.spec.total for job in mixture.jobs)
    assert said == [("passed", 1.0, 1, None)] * total, problems
    assert len({row["workflow_id"] for row in found}) == total
    assert {result.sandbox["provisions"] for job in mixture.jobs for result in job.results()} == {1}
    twice = {name: count for name, count in Counter(mixture.stack.world.started).items() if count > 1}
    assert not twice


def assert_is_undisturbed(mixture: Mixture) -> None:
    """What rollouts left is what an undisturbed one leaves, but for times and names."""
    first, second = mixture.agents.results()[0], (mixture.undisturbed or mixture).agents.results()[-1]
    one, other = (RolloutPaths(Path(str(result.directory))) for result in (first, second))
    assert one.root != other.root
    assert talk_of(one) == talk_of(other)
    assert calls_of(one) == calls_of(other)
    assert (first.rewards, first.steps[0].turn.usage) == (second.rewards, second.steps[0].turn.usage)
    (tree,) = mixture.tree.results()
    assert_is_whole(RolloutPaths(Path(str(tree.directory))), 2, [1])
    for name in mixture.lasting:
        (result,) = result_of(mixture.oracles, name)
        times_of(RolloutPaths(Path(str(result.directory))), LASTING[name][0], mixture.rounds)


def assert_went_on(mixture: Mixture, window: Window, by: float) -> None:
    """All acted while nobody looked: at least so many times a second."""
    # One fewer: the window may begin and end between two of them.
    least = (window.ended - window.began) * by - 1
    disturbed = max(
        (RolloutPaths(Path(str(result.directory))) for result in mixture.agents.results()),
        key=lambda paths: window.count(moments_of(paths)),
    )
    assert window.count(moments_of(disturbed)) >= least
    assert window.count(times_of(disturbed, "turn", mixture.rounds)) >= least
    for name in mixture.lasting:
        (result,) = result_of(mixture.oracles, name)
        paths = RolloutPaths(Path(str(result.directory)))
        assert window.count(times_of(paths, LASTING[name][0], mixture.rounds)) >= least, name


async def outlive(stack: EmbeddedStack, mixture: Mixture, kind: Kind, seconds: float) -> Window:
    """Have an outage while rollouts of every kind act, and wait until the server has heard of all of them again."""
    async with outage(stack, kind) as window:
        await last(seconds)
    await until(lambda: heard_since(mixture.tree, window.ended), every=0.1)
    return window


async def assert_outages_cost_nothing(mixture: Mixture, windows: Sequence[tuple[Kind, Window]]) -> None:
    """Let the rollouts finish, and look at what they and the outages leave. It stops the stack."""
    await mixture.finish()
    assert_passed(mixture)
    assert_is_undisturbed(mixture)
    for kind, window in windows:
        if kind != "host-frozen":
            assert_went_on(mixture, window, by=0.5 / EVERY_SEC)
    await assert_nothing_is_left(mixture.stack)
