"""Checks of a branch configuration at submit: settings that contradict each other, the task or the agent."""

from __future__ import annotations

from collections.abc import Collection

from benchflow.branching.custom import load_aggregate, load_policy
from benchflow.branching.policies import BuiltIn, count_children
from benchflow.contracts.branch import (
    AfterSteps,
    BranchConfig,
    CustomPolicy,
    EverySteps,
    Group,
    OnAskUser,
    TreeGrpo,
    Unbranched,
)
from benchflow.contracts.resuming import RUNGS, Rung, is_enough
from benchflow.errors import ConfigError


def check(config: BranchConfig, *, total_steps: int, rungs: Collection[Rung] = RUNGS) -> None:
    """Check that a branch configuration can be carried out. Imports a user's own policy and aggregate.

    Args:
        config: The configuration.
        total_steps: Number of the task's steps.
        rungs: Resume modes in which the agent's session can continue in a copy of its world.

    Raises:
        ConfigError: It cannot be carried out as it is.
    """
    load_aggregate(config.aggregate)
    policy = config.policy
    _check_resume_modes(config, rungs)
    _check_checkpoints(config)
    if isinstance(policy, Unbranched):
        return
    if isinstance(policy, CustomPolicy):
        load_policy(policy)
        _refuse(bool(config.children), "children", "a policy of your own says itself which there are", "leave them out")
        return
    _check_counts(policy)
    _check_children(config, policy)
    _check_then(config, policy)
    _check_places(config, policy, total_steps)
    if isinstance(policy, TreeGrpo):
        _check_tree_grpo(config, policy)


def _check_resume_modes(config: BranchConfig, rungs: Collection[Rung]) -> None:
    least = config.min_session_rung
    _refuse(
        not any(is_enough(rung, least) for rung in rungs),
        "min_session_rung",
        f"this agent's session cannot go on by {least!r}, only by: {', '.join(sorted(rungs)) or 'nothing'}",
        "allow less, or use another agent",
    )
    if not isinstance(config.policy, OnAskUser):
        return
    # An agent cannot be copied while it waits: a child is brought to the question again by a replay of the turn.
    _refuse(
        "replay" not in rungs or not is_enough("replay", least),
        "policy",
        "this agent cannot be brought back to its question: that needs replay"
        + (f", and min_session_rung is {least}" if "replay" in rungs else ""),
        "let its model calls go through the gateway, and let min_session_rung be replay or fresh",
    )


def _check_checkpoints(config: BranchConfig) -> None:
    """Check which nodes retain a checkpoint, and that a rollout that does not branch has no settings for children."""
    # By value: in a configuration that was stored and read again, every field is set.
    given = {name for name, field in type(config).model_fields.items() if getattr(config, name) != field.default}
    _refuse(
        "every" in given and config.checkpoint != "every_n",
        "every",
        f"it counts the nodes that keep a checkpoint, and with {config.checkpoint!r} they are not counted",
        "set checkpoint to every_n, or leave it out",
    )
    if not isinstance(config.policy, Unbranched):
        return
    _refuse(
        config.checkpoint not in ("every_n", "per_turn"),
        "checkpoint",
        "a rollout that does not branch keeps none, unless it is said of which nodes",
        "set it to per_turn or every_n, or leave `branch` out",
    )
    told = given - {"policy", "checkpoint", "every", "portable", "min_session_rung"}
    _refuse(
        bool(told),
        min(told, default=""),
        "it says something of children, and there are none",
        "leave it out, or choose a policy that branches",
    )


def _check_counts(policy: BuiltIn) -> None:
    if not isinstance(policy, AfterSteps) or isinstance(policy.n, int):
        return
    places, counts = len(policy.steps), len(policy.n)
    _refuse(
        counts != places or len(set(policy.steps)) != places,
        "policy.n",
        f"{counts} counts are given for {places} places",
        "give one for each of `steps`, none of which is named twice, or one number for all",
    )


def _check_children(config: BranchConfig, policy: BuiltIn) -> None:
    given, count = len(config.children), count_children(policy)
    first = policy.counts[min(policy.steps)] if isinstance(policy, AfterSteps) else count
    are_alike = isinstance(policy, OnAskUser | TreeGrpo)
    _refuse(
        are_alike and given > 0,
        "children",
        f"the children of {policy.kind} differ only by what the policy gives them",
        "leave them out",
    )
    _refuse(
        given not in (0, count),
        "children",
        f"{given} are given, but the policy has {count}",
        f"set n of the policy to {given}, or give {count}",
    )
    _refuse(
        any(child.answer is not None for child in config.children),
        "children",
        f"an answer belongs to a question, and {policy.kind} does not branch at one",
        "use the policy ask_user, or leave the answer out",
    )
    _refuse(
        first > config.max_children and not isinstance(policy, OnAskUser),
        "max_children",
        f"the first branch alone has {first} children, of at most {config.max_children}",
        "raise max_children, or lower the policy's count",
    )


def _check_then(config: BranchConfig, policy: BuiltIn) -> None:
    kind, _, number = config.then.partition(":")
    count = min(policy.counts.values()) if isinstance(policy, AfterSteps) else count_children(policy)
    _refuse(
        kind == "child" and int(number or 0) >= count,
        "then",
        f"there is no child {number}: their numbers are 0 to {count - 1}",
        "name one of them",
    )
    _refuse(
        isinstance(policy, OnAskUser) and kind == "itself",
        "then",
        "where the agent has asked, its children answer: nobody is left to go on for the parent",
        "leave it out",
    )
    _refuse(
        isinstance(policy, TreeGrpo) and kind != "stop",
        "then",
        "of the trees of Tree-GRPO none is gone on from",
        "leave it out",
    )


def _check_places(config: BranchConfig, policy: BuiltIn, total_steps: int) -> None:
    """Check that each place is reached and before the last step, and that the horizon shortens some child."""
    match policy:
        case AfterSteps():
            places = sorted(set(policy.steps))
        case EverySteps():
            places = list(range(policy.every, max(total_steps, policy.every + 1), policy.every))
        case Group():
            places = [policy.at]
        case _:
            places = [0]
    late = [place for place in places if place >= total_steps]
    _refuse(
        bool(late),
        "policy",
        f"the task has {total_steps} steps, so nothing is left to branch for after {late[-1] if late else ''}",
        "branch earlier",
    )
    _refuse(
        isinstance(policy, AfterSteps) and config.then == "stop" and len(places) > config.max_depth,
        "max_depth",
        f"it branches at {len(places)} depths, and children may only do so to depth {config.max_depth}",
        f"set max_depth to {len(places)}, or `then`, so that the parent goes on",
    )
    _refuse(
        config.horizon is not None and config.horizon > total_steps - places[0],
        "horizon",
        f"no child has more than {total_steps - places[0]} steps to run",
        "leave it out: then they run to the end",
    )


def _check_tree_grpo(config: BranchConfig, policy: TreeGrpo) -> None:
    _refuse(
        policy.k < 1 + policy.n,
        "policy.k",
        f"a tree of at most {policy.k} leaves has no room for a chain and the first {policy.n} that are drawn",
        f"set k to {1 + policy.n} or more; {1 + policy.n * policy.l} is room for all",
    )
    chains = policy.m * min(policy.k, 1 + policy.n * policy.l)
    _refuse(
        chains > config.max_children,
        "max_children",
        f"the {policy.m} trees have {chains} chains, of at most {config.max_children}",
        f"set it to {chains}, or lower m, n, l or k",
    )
    _refuse(
        config.checkpoint in ("none", "every_n"),
        "checkpoint",
        "any node may be drawn to grow a chain, so none may be without a checkpoint",
        "leave it out, or set it to per_turn",
    )


def _refuse(condition: bool, key: str, message: str, remedy: str) -> None:
    """Raise `ConfigError` for the key below `branch` if the condition holds."""
    if condition:
        raise ConfigError(message, key=f"branch.{key}", remedy=remedy)
