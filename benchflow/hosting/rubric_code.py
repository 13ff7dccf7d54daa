"""Import the rubric that a user names as `module:object`, by the current content of its file."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from benchflow.contracts.reward import RolloutNode, VerifyResult
from benchflow.errors import ConfigError
from benchflow.user_code import import_anew

_OPTION = "--rubric"


@runtime_checkable
class Scorer(Protocol):
    """A rubric in Python, such as `benchflow.Rubric`."""

    async def score(self, node: RolloutNode) -> VerifyResult:
        """Return the score of a node: rewards by key, or an error."""
        ...


def load_scorer(name: str, root: str) -> Scorer:
    """Import a rubric, also if an earlier version of its module was imported.

    Args:
        name: `module:object`.
        root: Directory in which the module is looked up after the installed ones; empty for none.

    Raises:
        ConfigError: It can't be imported, or is no object with a `score` method.
    """
    found = import_anew(name, root, key=_OPTION)
    if isinstance(found, type) or not isinstance(found, Scorer):
        raise ConfigError(
            f"{name} is no rubric: it has no `score`",
            key=_OPTION,
            remedy="name an object, as in: quality = benchflow.Rubric(…)",
        )
    return found
