"""Outages of minutes, with the options that nobody has set, on stacks side by side: one for each kind and provider."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from itertools import product
from pathlib import Path

import pytest
from support.embedded import EmbeddedStack, engine_of
from support.lasting_jobs import Mixture, assert_outages_cost_nothing, outlive, submit_mixture
from support.lasting_task import EVERY_SEC
from support.local_world import free_subnet
from support.outages import Kind, Window, small_disk

from benchflow.contracts.job import AgentSpec
from benchflow.contracts.operator_options import CAPACITY_VARIABLE, WorkerOptions, WorkflowOptions
from benchflow.paths import StatePaths
from benchflow.planes.sandbox import close_providers
from benchflow.planes.sandbox.local.network import SUBNET_VARIABLE

PROVIDERS = ("local", "docker")
LENGTHS_SEC = (90.0, 600.0)
SERVER_IS_AWAY: tuple[Kind, ...] = ("server-killed", "server-frozen", "path-cut")
REST: tuple[Kind, ...] = ("worker-frozen", "host-frozen", "disk-full")


@pytest.fixture
def defaults(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work with the options that nobody has set, but for the number of sandboxes."""
    for name in {*WorkerOptions.variables().values(), *WorkflowOptions.variables().values()}:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(CAPACITY_VARIABLE, "32")


@asynccontextmanager
async def another_stack(sandbox: str, toolboxes: Path, place: Path) -> AsyncIterator[EmbeddedStack]:
    """Start a stack. toolboxes: what it shares with others; place: where the disk of its database is mounted."""
    root = Path(tempfile.mkdtemp(prefix="bf-", dir="/tmp"))
    paths = StatePaths(root)
    paths.toolboxes.symlink_to(toolboxes)
    try:
        with small_disk(paths.database, place):
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("BENCHFLOW_STATE_DIR", str(root))
                if sandbox == "local":
                    patch.setenv(SUBNET_VARIABLE, free_subnet())
                made = EmbeddedStack(root, sandbox)
                await made.start()
            try:
                yield made
            finally:
                await made.close()
                await close_providers(made.id)
    finally:
        shutil.rmtree(root)


@pytest.mark.long
@pytest.mark.docker
@pytest.mark.local
@pytest.mark.parametrize(
    "kinds", [SERVER_IS_AWAY, pytest.param(REST, marks=pytest.mark.soak)], ids=["server-is-away", "rest"]
)
async def test_an_outage_of_minutes_costs_no_turn_whose_options_are_the_defaults(
    lasting_agent: AgentSpec, defaults: None, kept: StatePaths, tmp_path: Path, kinds: Sequence[Kind]
) -> None:
    """Each stack has a short one, and then one that is longer than any timeout.

    On each acts an agent, a verifier in a sandbox of its own, and a tree: more would need more than two cores. Before,
    one agent of each provider has acted undisturbed.
    """
    rounds = int(sum(seconds + 100 for seconds in LENGTHS_SEC) / EVERY_SEC)
    mixtures: list[tuple[Kind, Mixture]] = []
    undisturbed: dict[str, Mixture] = {}

    async def outlive_both(kind: Kind, mixture: Mixture) -> list[tuple[Kind, Window]]:
        return [(kind, await outlive(mixture.stack, mixture, kind, seconds)) for seconds in LENGTHS_SEC]

    async with AsyncExitStack() as stacks:
        for kind, sandbox in product(kinds, PROVIDERS):
            place = tmp_path / f"{kind}-{sandbox}"
            made = await stacks.enter_async_context(another_stack(sandbox, kept.toolboxes, place / "disk"))
            with engine_of(made):
                mixture = await submit_mixture(
                    made, place, lasting_agent, rounds, ["clean-room"], undisturbed.get(sandbox)
                )
            mixtures.append((kind, mixture))
            undisturbed.setdefault(sandbox, mixture)
        await asyncio.gather(*(mixture.undisturbed_is_over() for _, mixture in mixtures))
        for _, mixture in mixtures:
            mixture.act()
        windows = await asyncio.gather(*(outlive_both(*each) for each in mixtures))
        for (_, mixture), its in zip(mixtures, windows, strict=True):
            with engine_of(mixture.stack):
                await assert_outages_cost_nothing(mixture, its)
