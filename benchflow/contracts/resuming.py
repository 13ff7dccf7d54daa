"""How an agent's session is resumed in a copy of its world."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator

Rung = Literal["load", "replay", "fresh"]
"""How an agent's session goes on in a copy of its world, best first.

`load`: a new process loads the session. `replay`: a new session is driven to the same point, with its model calls
answered from the record. `fresh`: a new session that knows nothing.
"""

RUNGS: tuple[Rung, ...] = ("load", "replay", "fresh")


def is_enough(rung: Rung, least: Rung) -> bool:
    """Whether a rung is `least` or better."""
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
"""As it is in results and messages, also those of earlier versions."""

LeastRung = Annotated[Rung, BeforeValidator(_refuse_process)]
"""As somebody asks for it."""
