"""The activities that ask users' own code: a policy whether a rollout branches, an aggregate what a state is worth.

It runs in this process, in a thread of its own: what blocks there keeps nothing else from going on.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from temporalio import activity

from benchflow.branching.custom import decide, load_aggregate, load_policy
from benchflow.contracts import names
from benchflow.contracts.activities import Aggregated, AggregateInput, DecideInput, Decision
from benchflow.errors import ConfigError
from benchflow.planes.agent.child import check_child
from benchflow.planes.sandbox.timeouts import awake_timeout
from benchflow.trajectories.values import aggregated

T = TypeVar("T")

PATIENCE_SEC = 60.0
"""How long a user's code may think."""


class DecidingActivities:
    @activity.defn(name=names.DECIDE)
    async def decide(self, work: DecideInput) -> Decision:
        """Ask a user's policy. Raises `ConfigError`, which ends the rollout, for what it does wrong."""

        def ask() -> Decision:
            policy = load_policy(work.policy)
            children = decide(policy, work.tree, work.node, work.steps_left, most=work.most)
            for number, child in enumerate(children):
                check_child(work.agent, child, f"branch.policy: child {number} of {work.node}")
            return Decision(children=list(children))

        return await asked(ask, work.policy.policy, "branch.policy.policy")

    @activity.defn(name=names.AGGREGATE)
    async def aggregate(self, work: AggregateInput) -> Aggregated:
        """Ask a user's aggregate. Raises `ConfigError` where it cannot be had, else `RewardFuncError`."""

        def ask() -> Aggregated:
            own = load_aggregate(work.aggregate)
            assert own is not None  # a built-in one is known to workflows
            return Aggregated(value=aggregated(work.aggregate, own, work.returns))

        return await asked(ask, work.aggregate, "branch.aggregate")


async def asked(ask: Callable[[], T], name: str, key: str, patience: float = PATIENCE_SEC) -> T:
    """What a function returns, or raises, in a thread of its own. Raises `ConfigError` when it takes too long."""
    answer: Future[T] = Future()
    answer.set_running_or_notify_cancel()

    def run() -> None:
        try:
            answer.set_result(ask())
        except Exception as error:
            answer.set_exception(error)
        except BaseException as error:  # such as `sys.exit()`, which is none of this process
            answer.set_exception(ConfigError(f"failed: {type(error).__name__}: {error}", file=name, key=key))

    # A pool's threads are shared, and are waited for when the process ends.
    threading.Thread(target=run, name=f"own {name}", daemon=True).start()
    try:
        async with awake_timeout(patience):
            return await asyncio.wrap_future(answer)
    except TimeoutError as error:
        raise ConfigError(
            f"has not answered for {patience:g} s", file=name, key=key, remedy="let it be quick: a tree waits for it"
        ) from error
