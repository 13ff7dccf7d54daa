"""How an agent's session is resumed in a copy of its world."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator

Rung = Literal["load", "replay", "fresh"]
"""Resume modes: how an agent's session is resumed in a copy of its world, best first.

`load`: a new process of the agent loads the session. `replay`: a new session is driven through the same turns, with its
model calls answered from the record. `fresh`: a new session without any history.
"""

RUNGS: tuple[Rung, ...] = ("load", "replay", "fresh")
"""All resume modes, best first."""


def is_enough(rung: Rung, least: Rung) -> bool:
    """Return whether a resume mode is `least` or better."""
    return RUNGS.index(rung) <= RUNGS.index(least)


def _read_stored(value: object) -> object:
    # Earlier versions wrote `process` for a rollout without a session.
    return None if value == "process" else value


def _refuse_process(value: object) -> object:
    if value == "process":
        raise ValueError(
            "`process` is no way to go on: an agent's process holds connections and files of its own world, which no "
            "copy can share; ask for `load`"
        )
    return value


StoredRung = Annotated[Rung | None, BeforeValidator(_read_stored)]
"""Resume mode in results and messages; None if there was no session, for which earlier versions wrote `process`."""

LeastRung = Annotated[Rung, BeforeValidator(_refuse_process)]
"""Worst resume mode that a user accepts. `process`, of earlier versions, is refused."""
