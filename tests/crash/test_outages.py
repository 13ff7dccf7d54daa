"""The server, the way to it, a worker, a whole host or a disk is away for many heartbeat timeouts, and comes back.

An outage costs time, and never a turn: what acts goes on acting meanwhile, and each rollout ends as an undisturbed one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import get_args

import pytest
from _pytest.mark import ParameterSet
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
from support.outages import HEARTBEAT_TIMEOUT_SEC, Kind, Window, last, outage
from support.scored import assert_nothing_is_left, finish, rows, submit_job
from temporalio.service import RPCError

from benchflow.contracts.job import AgentSpec
from benchflow.contracts.options import CAPACITY_VARIABLE, WorkerOptions, WorkflowOptions
from benchflow.contracts.rollout import RolloutResult
from benchflow.jobs import Job
from benchflow.paths import RolloutPaths
from benchflow.testing.waiting import until

pytestmark = pytest.mark.usefixtures("outages_noticed_soon")

LASTING: dict[str, tuple[Part, bool]] = {
    "solution": ("solution", False),
    "verifier": ("verifier", False),
    "clean-room": ("verifier", True),
}
"""Tasks of the oracle: the part that lasts, and whether its verifier has a sandbox of its own."""


@pytest.fixture
def defaults(outages_noticed_soon: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work with the options that nobody has set, but for the number of sandboxes."""
    for name in {*WorkerOptions.variables().values(), *WorkflowOptions.variables().values()} - {CAPACITY_VARIABLE}:
        monkeypatch.delenv(name, raising=False)


@dataclass
class Mixture:
    """Rollouts of every kind that are in the part that lasts, and an undisturbed one that is over.

    rounds: how many each lasting part has.
    """

    stack: EmbeddedStack
    agents: Job
    oracles: Job
    tree: Job
    rounds: int

    @property
    def jobs(self) -> list[Job]:
        return [self.agents, self.oracles, self.tree]

    async def finish(self) -> None:
        """Let all parts go, and wait for the jobs."""
        for held in (LAST_ROUNDS, step(1)):
            self.stack.let_go(held)
        for job in self.jobs:
            await finish(job)


async def begin(stack: EmbeddedStack, tmp_path: Path, agent: AgentSpec, rounds: int) -> Mixture:
    """Return the mixture when all of it acts."""
    tasks, jobs = tmp_path / "tasks", tmp_path / "jobs"
    turn = write_lasting_task(tasks, "turn", "turn", rounds)
    lasting = [
        write_lasting_task(tasks, name, part, rounds, in_clean_room=has_room)
        for name, (part, has_room) in LASTING.items()
    ]
    growing = write_growing_task(tasks, 2, held=[1])
    once = {"retry": {"max_retries": 0}}
    mixture = Mixture(
        stack,
        await submit_job(stack, [turn], jobs, "agents", agents=[agent], repeats=2, **once),
        await submit_job(stack, lasting, jobs, "oracles", **once),
        await submit_job(stack, [growing], jobs, "tree", branch=branch_after([1]), **once),
        rounds,
    )
    await stack.in_step(step(1), 2)
    undisturbed = [seen for seen in await stack.in_step(PART, 2 + len(lasting)) if "/r/turn/" in seen.workflow][:1]
    for held in (PART, LAST_ROUNDS):
        stack.let_go(held, undisturbed)
    await until(lambda: mixture.agents.directory.results.exists() and rows(mixture.agents))
    stack.let_go(PART)
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
    assert said == [("passed", 1.0, 1, None)] * 6, problems
    assert len({row["workflow_id"] for row in found}) == 6
    assert {result.sandbox["provisions"] for job in mixture.jobs for result in job.results()} == {1}
    twice = {name: count for name, count in Counter(mixture.stack.world.started).items() if count > 1}
    assert not twice


def assert_is_undisturbed(mixture: Mixture) -> None:
    """What rollouts left is what an undisturbed one leaves, but for times and names."""
    one, other = (RolloutPaths(Path(str(result.directory))) for result in mixture.agents.results())
    assert talk_of(one) == talk_of(other)
    assert calls_of(one) == calls_of(other)
    first, second = mixture.agents.results()
    assert (first.rewards, first.steps[0].turn.usage) == (second.rewards, second.steps[0].turn.usage)
    (tree,) = mixture.tree.results()
    assert_is_whole(RolloutPaths(Path(str(tree.directory))), 2, [1])
    for name, (part, _) in LASTING.items():
        (result,) = result_of(mixture.oracles, name)
        times_of(RolloutPaths(Path(str(result.directory))), part, mixture.rounds)


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
    for name, (part, _) in LASTING.items():
        (result,) = result_of(mixture.oracles, name)
        paths = RolloutPaths(Path(str(result.directory)))
        assert window.count(times_of(paths, part, mixture.rounds)) >= least, name


SEVERAL = HEARTBEAT_TIMEOUT_SEC * 3
MANY = HEARTBEAT_TIMEOUT_SEC * 20
UNTIL_THE_SDK_GIVES_UP = HEARTBEAT_TIMEOUT_SEC + 7
"""The SDK cancels an activity by itself, and says that it is not found, 5 s after a heartbeat timeout."""


PROVIDERS = ("local", "docker")
KINDS: tuple[Kind, ...] = get_args(Kind)


def case(sandbox: str, *outages: tuple[Kind, float], long: bool = False, soak: bool = False) -> ParameterSet:
    """Return the parameters of a test on a provider. long: whether other cases show the same; soak: it takes longer."""
    marks = [getattr(pytest.mark, sandbox)] + [pytest.mark.long] * long + [pytest.mark.soak] * soak
    name = "-".join([sandbox, *(f"{kind}-{seconds:g}" for kind, seconds in outages)])
    return pytest.param(sandbox, outages, id=name, marks=marks)


@pytest.mark.parametrize(
    ("sandbox", "outages"),
    [
        # Between these, each kind is met by the same rollouts, which outlive several.
        case("local", ("disk-full", SEVERAL), ("host-frozen", SEVERAL), ("server-killed", MANY)),
        case("docker", ("worker-frozen", SEVERAL), ("server-frozen", SEVERAL), ("path-cut", UNTIL_THE_SDK_GIVES_UP)),
        *(
            case(sandbox, (kind, seconds), long=True)
            for sandbox, kind, seconds in product(PROVIDERS, KINDS, (SEVERAL, MANY))
        ),
    ],
    indirect=["sandbox"],
)
async def test_an_outage_costs_time_and_never_a_turn(
    disk: None,
    lasting_agent: AgentSpec,
    stack: EmbeddedStack,
    tmp_path: Path,
    outages: Sequence[tuple[Kind, float]],
) -> None:
    await outlive(stack, tmp_path, lasting_agent, outages)


@pytest.mark.parametrize(
    ("sandbox", "outages"),
    [
        case("local", ("server-killed", 90.0), long=True),
        case("docker", ("path-cut", 90.0), long=True),
        case("local", ("server-killed", 600.0), long=True),
        *(
            case(sandbox, (kind, 600.0), soak=True)
            for sandbox, kind in product(PROVIDERS, KINDS)
            if (sandbox, kind) != ("local", "server-killed")
        ),
    ],
    indirect=["sandbox"],
)
async def test_an_outage_of_minutes_costs_no_turn_whose_options_are_the_defaults(
    disk: None,
    lasting_agent: AgentSpec,
    defaults: None,
    stack: EmbeddedStack,
    tmp_path: Path,
    outages: Sequence[tuple[Kind, float]],
) -> None:
    await outlive(stack, tmp_path, lasting_agent, outages)


async def outlive(
    stack: EmbeddedStack, tmp_path: Path, agent: AgentSpec, outages: Sequence[tuple[Kind, float]]
) -> None:
    """Have outages, one after the other, while rollouts of every kind act, and look at what these leave."""
    rounds = int(sum(seconds for _, seconds in outages) / EVERY_SEC) + 100
    mixture = await begin(stack, tmp_path, agent, rounds)
    windows: list[tuple[Kind, Window]] = []
    for kind, seconds in outages:
        async with outage(stack, kind) as window:
            await last(seconds)
        windows.append((kind, window))
        await until(lambda ended=window.ended: heard_since(mixture.tree, ended), every=0.1)  # type: ignore[misc]
    await mixture.finish()
    assert_passed(mixture)
    assert_is_undisturbed(mixture)
    for kind, window in windows:
        if kind != "host-frozen":
            assert_went_on(mixture, window, by=0.5 / EVERY_SEC)
    await assert_nothing_is_left(stack)
