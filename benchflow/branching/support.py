"""What a branch may ask for and the engine does not carry out yet: refused by name when a job is submitted."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from benchflow.contracts.branch import BranchConfig
from benchflow.errors import UnsupportedFeatureError
from benchflow.trajectories.values import BUILT_IN


class _Missing(NamedTuple):
    """asks: whether a configuration wants it."""

    key: str
    what: str
    remedy: str
    asks: Callable[[BranchConfig], bool]


_KINDS = ("after_steps", "every_n", "group", "ask_user", "tree_grpo")
"""Policies that are carried out."""

_MISSING = (
    _Missing(
        "policy.kind",
        "a policy of your own is not",
        f"use one of: {', '.join(_KINDS)}",
        lambda config: config.policy.kind not in _KINDS,
    ),
    _Missing(
        "aggregate",
        "a function of your own is not",
        f"use {' or '.join(BUILT_IN)}",
        lambda config: config.aggregate not in BUILT_IN,
    ),
    _Missing(
        "checkpoint",
        "checkpoints that are kept, or left out, are not",
        "leave it out: a node that branches has one until its children have ended",
        lambda config: config.checkpoint != "branch",
    ),
    _Missing(
        "portable",
        "checkpoints for other hosts are not",
        "leave it out: children run on their parent's host",
        lambda config: config.portable,
    ),
    _Missing(
        "children.role",
        "a child's own role is not",
        "leave it out",
        lambda config: any(child.role is not None for child in config.children),
    ),
)


def require_carried_out(config: BranchConfig) -> None:
    """Raises `UnsupportedFeatureError` for the first thing that is asked for and would not happen."""
    for missing in _MISSING:
        if missing.asks(config):
            raise UnsupportedFeatureError(
                f"{missing.what} carried out in this release", key=f"branch.{missing.key}", remedy=missing.remedy
            )
