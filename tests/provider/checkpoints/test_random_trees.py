"""Random trees of real sandboxes against a model: each node is what its own path made of it, whoever else is there."""

from __future__ import annotations

import json
import os
import random
import uuid
from typing import Any

import pytest
from support.captured import checkpoint_of
from support.random_worlds import DATABASE, PROGRAM, Change, Model
from support.small_worlds import Fresh, MakeWorld, OnDocker, OnLocal, Worlds, notes

from benchflow.checkpoints import capture, prove
from benchflow.contracts.environment import StateTable
from benchflow.contracts.images import ImageRef
from benchflow.contracts.sandbox import Sandbox
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.testing.sandbox_conformance.sandbox_fixtures import Keep, Start

DEPTH = 4
MOST = 4
"""Children of a node."""

CHANGES = 5
"""At a node, at most."""

STATE = StateTable(paths=(DATABASE,))
WAYS = ("fork", "snapshot", "checkpoint")
"""How children begin: as copies of a running sandbox, from an image of its files, or of all layers and proved."""


class Tree:
    """One tree as it is grown, and how many nodes may still come."""

    def __init__(self, chance: random.Random, nodes: int, provider: SandboxProvider, start: Start, keep: Keep) -> None:
        self.chance = chance
        self.left = nodes - 1
        self.grown = 0
        self._provider = provider
        self._start = start
        self._keep = keep

    async def grow(self, sandbox: Sandbox, model: Model, world: MakeWorld, discard: list[ImageRef], depth: int) -> None:
        """Change a node, have children go on from it, and compare it before and after they have."""
        changes = [model.change(self.chance) for _ in range(self.chance.randint(1, CHANGES))]
        assert await made(sandbox, changes) == model.seen(), changes
        self.grown += 1
        count = min(self.chance.randint(1, MOST), self.left) if depth < DEPTH else 0
        self.left -= count
        way = self.chance.choice(WAYS)
        children = await self._children(way, sandbox, count, world, discard) if count else []
        for child in children:
            assert await made(child, []) == model.seen(), f"a child by {way}"
            await self.grow(child, model.copied(), world, discard, depth + 1)
        if children:
            assert await made(sandbox, []) == model.seen(), "what its children did is seen in their parent"
        await self._provider.remove(sandbox.ref.name)

    async def _children(
        self, way: str, sandbox: Sandbox, count: int, world: MakeWorld, discard: list[ImageRef]
    ) -> list[Sandbox]:
        if way == "fork":
            names = [f"benchflow-test-{uuid.uuid4().hex[:12]}" for _ in range(count)]
            return [await self._provider.attach(ref) for ref in await sandbox.fork(names)]
        if way == "snapshot":
            image = await self._keep(sandbox)
            return [await self._start(image=image) for _ in range(count)]
        name = f"benchflow-test-{uuid.uuid4().hex[:12]}"
        here = world(notes(), sandbox=sandbox, state=STATE)
        captured = await capture(name, sandbox, self._provider, here, paths=STATE.paths)
        discard.append(captured.files.image)
        copies = [await self._start(image=captured.files.image) for _ in range(count)]
        for each in copies:
            await prove(checkpoint_of(captured, each), each, world(notes(), sandbox=each, state=STATE))
        return copies


async def made(sandbox: Sandbox, changes: list[Change]) -> Any:
    """Make changes in a sandbox; what is there then."""
    said = await sandbox.exec(["python3", "-c", PROGRAM, json.dumps(changes)], cwd="/")
    assert said.return_code == 0, f"{changes}: {said.stderr}"
    return json.loads(said.stdout)


class RandomTrees(Worlds):
    async def grow(
        self,
        trees: int,
        nodes: int,
        provider: SandboxProvider,
        fresh: Fresh,
        start: Start,
        keep: Keep,
        world: MakeWorld,
        discard: list[ImageRef],
    ) -> None:
        seed = int(os.environ.get("BENCHFLOW_TEST_SEED") or random.SystemRandom().randrange(10**6))
        print(f"\nBENCHFLOW_TEST_SEED={seed}")
        grown = 0
        for number in range(trees):
            tree = Tree(random.Random(f"{seed}-{number}"), nodes, provider, start, keep)
            await tree.grow(await fresh(), Model(), world, discard, 0)
            while discard:
                await provider.remove_image(discard.pop())
            grown += tree.grown
        print(f"{trees} trees of {grown} nodes")


@pytest.mark.local
class TestOnLocal(OnLocal, RandomTrees):
    @pytest.mark.parametrize(
        ("trees", "nodes"),
        [(1, 7), pytest.param(8, 12, marks=pytest.mark.long), pytest.param(200, 12, marks=pytest.mark.soak)],
    )
    async def test_each_node_is_what_its_path_made_of_it(
        self,
        trees: int,
        nodes: int,
        provider: SandboxProvider,
        fresh: Fresh,
        start: Start,
        keep: Keep,
        world: MakeWorld,
        discard: list[ImageRef],
    ) -> None:
        await self.grow(trees, nodes, provider, fresh, start, keep, world, discard)


@pytest.mark.docker
@pytest.mark.long
class TestOnDocker(OnDocker, RandomTrees):
    async def test_each_node_is_what_its_path_made_of_it(
        self,
        provider: SandboxProvider,
        fresh: Fresh,
        start: Start,
        keep: Keep,
        world: MakeWorld,
        discard: list[ImageRef],
    ) -> None:
        await self.grow(4, 12, provider, fresh, start, keep, world, discard)
