"""Agents behind acpx: `acpx/<agent>`, an agent of the registry that a client with a command line of its own drives.

Here is what the registry says of such a pair; `session` holds a session with one. Both programs lie in one toolbox, so
that acpx is told how the agent is started and never fetches one itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchflow.contracts.agent import AgentRecord, Choice, NodeInstall
from benchflow.contracts.resuming import is_enough
from benchflow.errors import UnsupportedFeatureError

PREFIX = "acpx/"


@dataclass(frozen=True)
class Choices:
    """What acpx tells the agent for a session, as the agent spells it. None, or nothing: what is the agent's own."""

    model: str | None = None
    mode: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)


NO_CHOICES = Choices()


def choices_of(record: AgentRecord, model: str | None, effort: str | None) -> Choices:
    """What of an agent's model and effort is told in its session, and not when it starts; and its mode.

    model: of its settings, as the agent spells it.
    """
    mode, options = record.session.mode, {}
    if effort is not None and record.effort is not None:
        if record.effort.by == "mode":
            mode = _spelled(record.effort, effort)
        elif record.effort.option is not None:
            options[record.effort.option] = _spelled(record.effort, effort)
    by_session = record.model is not None and record.model.by in ("config_option", "set_model")
    told = _spelled(record.model, model) if by_session and record.model and model else None
    return Choices(told, mode, options)


def _spelled(choice: Choice, value: str) -> str:
    return (choice.value or value).replace("{model}", value).replace("{effort}", value)


def acpx_record(acpx: AgentRecord, inner: AgentRecord) -> AgentRecord:
    """The record of `inner` behind `acpx`, whose own says which version there is and what is known of it.

    Raises `UnsupportedFeatureError` for an agent that acpx cannot drive, or that has no toolbox with Node.
    """
    ours, theirs = acpx.install, inner.install
    assert isinstance(ours, NodeInstall)
    if inner.protocol != "acp":
        raise _not_behind(inner, "does not speak the Agent Client Protocol")
    if not isinstance(theirs, NodeInstall) or inner.version is None:
        raise _not_behind(inner, "does not run on Node, as acpx does: the two have one toolbox")
    install = theirs.model_copy(update={"packages": {**theirs.packages, **ours.packages}})
    session: dict[str, Any] = {"hazards": (*inner.session.hazards, *acpx.session.hazards)}
    if is_enough(inner.session.rung, "load"):
        # The session is acpx's, which answers to a process that a copy of the world does not have.
        session["rung"] = "replay"
    table = inner.model_dump() | {
        "name": f"{PREFIX}{inner.name}",
        "description": f"{inner.description.rstrip('.')}, behind acpx.",
        "aliases": (),
        "protocol": "acpx",
        "version": f"{acpx.version}-{inner.version}",
        "install": install.model_dump(),
        "env": {**inner.env, **acpx.env},
        "home_dirs": (*inner.home_dirs, *acpx.home_dirs),
        "session": inner.session.model_copy(update=session).model_dump(),
        "checked": (*(f"acpx: {text}" for text in acpx.checked), *(f"{inner.name}: {text}" for text in inner.checked)),
    }
    return AgentRecord.model_validate(table)


def _not_behind(inner: AgentRecord, why: str) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        f"agent {inner.name!r} {why}",
        file=inner.source or None,
        key="agent",
        remedy=f"use {inner.name} without {PREFIX}",
    )
