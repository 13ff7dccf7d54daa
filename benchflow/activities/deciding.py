"""The activities that call users' own code: branch policies, and aggregates of children's returns.

The code runs in this process, in a thread of its own, so that a call that blocks does not block the worker. A retry of
the activity calls it again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from temporalio import activity

from benchflow.branching.custom import decide, load_aggregate, load_policy
from benchflow.contracts import temporal_names
from benchflow.contracts.activities import Aggregated, AggregateInput, BranchDecision, DecideInput
from benchflow.contracts.fixed_durations import USER_CODE_SEC
from benchflow.errors import ConfigError
from benchflow.planes.agent.child import check_child
from benchflow.planes.sandbox.timeouts import awake_timeout
from benchflow.trajectories.state_values import call_aggregate

T = TypeVar("T")


class DecidingActivities:
    """The activities that call users' branch policies and aggregates."""

    @activity.defn(name=temporal_names.DECIDE)
    async def decide(self, work: DecideInput) -> BranchDecision:
        """Call a user's branch policy at a node, and return the children that it wants there.

        Args:
            work: The policy, the node, the tree so far, and the limits.

        Raises:
            ConfigError: The policy fails, times out, or returns invalid children. It ends the rollout.
        """

        def ask() -> BranchDecision:
            policy = load_policy(work.policy)
            children = decide(policy, work.tree, work.node, work.steps_left, most=work.most)
            for number, child in enumerate(children):
                check_child(work.agent, child, f"branch.policy: child {number} of {work.node}")
            return BranchDecision(children=list(children))

        return await run_in_thread(ask, work.policy.policy, "branch.policy.policy")

    @activity.defn(name=temporal_names.AGGREGATE)
    async def aggregate(self, work: AggregateInput) -> Aggregated:
        """Call a user's aggregate on the returns of children, and return V(s).

        Args:
            work: Name of the aggregate, and the returns.

        Raises:
            ConfigError: The aggregate can't be loaded, or times out.
            RewardFuncError: It fails, or returns an invalid value.
        """

        def ask() -> Aggregated:
            own = load_aggregate(work.aggregate)
            assert own is not None  # workflows compute built-in aggregates themselves
            return Aggregated(value=call_aggregate(work.aggregate, own, work.returns))

        return await run_in_thread(ask, work.aggregate, "branch.aggregate")


async def run_in_thread(ask: Callable[[], T], name: str, key: str, patience: float = USER_CODE_SEC) -> T:
    """Call a function in a thread of its own, and return its result or raise its exception.

    Args:
        ask: The function.
        name: The function's import path, for errors.
        key: The configuration key that holds it, for errors.
        patience: Timeout in seconds; time in which this process was frozen does not count.

    Raises:
        ConfigError: The function has timed out, or raised `SystemExit` or the like.
    """
    answer: Future[T] = Future()
    answer.set_running_or_notify_cancel()

    def run() -> None:
        try:
            answer.set_result(ask())
        except Exception as error:
            answer.set_exception(error)
        except BaseException as error:  # such as `SystemExit`, which must not end the worker
            answer.set_exception(ConfigError(f"failed: {type(error).__name__}: {error}", file=name, key=key))

    # Not in a pool: a call that hangs would occupy a shared thread, and the process would wait for it at its end.
    threading.Thread(target=run, name=f"own {name}", daemon=True).start()
    try:
        async with awake_timeout(patience):
            return await asyncio.wrap_future(answer)
    except TimeoutError as error:
        raise ConfigError(
            f"has not answered for {patience:g} s", file=name, key=key, remedy="let it be quick: a tree waits for it"
        ) from error
