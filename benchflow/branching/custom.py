"""Users' own branch policies, and own functions that aggregate children's returns to one value.

Both are named in a job's data and imported on a host: at submit, so that a wrong name is refused there, and in the
activity that calls them. An object that cannot be loaded, or a policy that fails, is a `ConfigError` that names it.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from importlib.metadata import entry_points
from typing import Any

from benchflow.branching.policies import BranchPolicy
from benchflow.contracts.branch import ChildSpec, CustomPolicy
from benchflow.contracts.rollout_records import RolloutTree
from benchflow.errors import ConfigError
from benchflow.trajectories.state_values import BUILT_IN, Aggregate, is_user_function
from benchflow.user_files.user_model import KeyFault, require_model

GROUP = "benchflow.branch_policies"

POLICY_KEY = "branch.policy.policy"
AGGREGATE_KEY = "branch.aggregate"


def load_policy(policy: CustomPolicy) -> BranchPolicy:
    """Import the user's policy, and make it with its options.

    Args:
        policy: Its name, as an entry point or `module:Class`, and its options.

    Raises:
        ConfigError: It is not found, is no class with `decide`, or rejects its options.
    """
    declared = {point.name: point.value for point in entry_points(group=GROUP)}
    if ":" not in policy.policy and policy.policy not in declared:
        known = f"one of {', '.join(sorted(declared))}, or " if declared else ""
        raise ConfigError(
            f"no installed package declares a branch policy {policy.policy!r}",
            key=POLICY_KEY,
            remedy=f"write {known}package.module:Class, or declare it as an entry point of {GROUP}",
        )
    name = declared.get(policy.policy, policy.policy)
    kind = _import_object(name, POLICY_KEY)
    # Checked before it is called: a job's file chooses the name, and must not call just any installed object.
    if not isinstance(kind, type) or not callable(getattr(kind, "decide", None)):
        raise ConfigError(
            "is no class of branch policies: it has no `decide`",
            file=name,
            key=POLICY_KEY,
            remedy="name a class with decide(tree, node, steps_left), which returns a list of ChildSpec or None",
        )
    try:
        made: BranchPolicy = kind(**policy.options)
    except Exception as error:
        raise ConfigError(
            f"cannot be made with the options {policy.options}: {type(error).__name__}: {error}",
            file=name,
            key="branch.policy.options",
            remedy="give the keyword arguments that the class takes",
        ) from error
    return made


def load_aggregate(name: str) -> Aggregate | None:
    """Return the user's function of this name; None for a built-in aggregate.

    Raises:
        ConfigError: The name is unknown, cannot be imported, or is that of no function.
    """
    if name in BUILT_IN:
        return None
    if not is_user_function(name):
        raise ConfigError(
            f"there is no aggregate {name!r}",
            key=AGGREGATE_KEY,
            remedy=f"use {' or '.join(BUILT_IN)}, or module:function",
        )
    found = _import_object(name, AGGREGATE_KEY)
    if not callable(found) or isinstance(found, type):
        raise ConfigError(
            "is no function",
            file=name,
            key=AGGREGATE_KEY,
            remedy="name a function that is given a list of floats and returns one",
        )
    aggregate: Aggregate = found
    return aggregate


def decide(
    policy: BranchPolicy, tree: RolloutTree, node: str, steps_left: int, *, most: int = 1000
) -> tuple[ChildSpec, ...]:
    """Ask a user's policy for the children at a node, and check them. Return none if the rollout is not to branch.

    Args:
        policy: The user's policy.
        tree: The tree so far.
        node: The node's id.
        steps_left: Number of steps that may still be run from there.
        most: Maximum of children in the whole tree, which those of one node must not exceed either.

    Raises:
        ConfigError: The policy fails, returns no list of children, gives one an answer, or returns more than `most`.
    """
    name = f"{type(policy).__module__}:{type(policy).__qualname__}"
    here = tree.path(node)[-1]
    try:
        decided = policy.decide(tree, here, steps_left)
    except Exception as error:
        raise ConfigError(
            f"failed at the node {node}: {type(error).__name__}: {error}",
            file=name,
            key=POLICY_KEY,
            remedy="mend its `decide`; `bench job resume` then goes on from there",
        ) from error
    children = _check_children(decided, name)
    if len(children) > most:
        raise ConfigError(
            f"wants {len(children)} children at the node {node}, of at most {most} in the whole tree",
            file=name,
            key="branch.max_children",
            remedy="let it decide on fewer, or raise max_children",
        )
    return children


def _check_children(decided: Any, name: str) -> tuple[ChildSpec, ...]:
    """Check a policy's return value, and return the children."""
    remedy = "return a list of ChildSpec, or None; `decide` may not be async"
    if decided is None:
        return ()
    if not isinstance(decided, Sequence) or isinstance(decided, str | bytes):
        if hasattr(decided, "close"):
            decided.close()
        raise ConfigError(
            f"returned no list of children: {str(decided)[:80]}", file=name, key=POLICY_KEY, remedy=remedy
        )

    def error(fault: KeyFault) -> ConfigError:
        return ConfigError(f"returned what is no child: {fault}", file=name, key=POLICY_KEY, remedy=remedy)

    children = tuple(require_model(ChildSpec, child, error) for child in decided)
    if any(child.answer is not None for child in children):
        raise ConfigError(
            "gives a child an answer, where nothing was asked",
            file=name,
            key=POLICY_KEY,
            remedy="leave it out: the policy ask_user branches at questions",
        )
    return children


def _import_object(name: str, key: str) -> Any:
    """Import `module:attribute`. Raise `ConfigError` for `key` if that fails."""
    module, _, attribute = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"cannot be imported: {type(error).__name__}: {error}",
            file=name,
            key=key,
            remedy="write package.module:name, of a package that is installed here and where it runs",
        ) from error
    return found
