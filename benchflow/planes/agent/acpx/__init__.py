"""Registry records of agents behind acpx: `acpx/AGENT`, an agent of the registry that a command-line client drives.

`session` drives such a pair. Both programs lie in one toolbox, so that acpx gets the agent's command and never fetches
an agent itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchflow.contracts.agent_record import AgentRecord, ChoiceChannel, NodeInstall
from benchflow.contracts.resuming import is_enough
from benchflow.errors import UnsupportedFeatureError

PREFIX = "acpx/"
"""Prefix of the names of agents behind acpx."""


@dataclass(frozen=True)
class Choices:
    """The settings that acpx sends the agent for a session, as the agent spells them."""

    model: str | None = None
    """Model; None for the agent's own, or one that it got at its start."""

    mode: str | None = None
    """Session mode; None for the agent's own."""

    options: Mapping[str, str] = field(default_factory=dict)
    """Values of configuration options by id."""


NO_CHOICES = Choices()


def make_choices(record: AgentRecord, model: str | None, effort: str | None) -> Choices:
    """Return the settings that an agent receives in its session, and not at its start.

    Args:
        record: Registry record of the agent.
        model: Model as the agent spells it; None for its own choice.
        effort: Reasoning effort; None for the agent's default.
    """
    mode, options = record.session.mode, {}
    if effort is not None and record.effort is not None:
        if record.effort.by == "mode":
            mode = _spell(record.effort, effort)
        elif record.effort.option is not None:
            options[record.effort.option] = _spell(record.effort, effort)
    by_session = record.model is not None and record.model.by in ("config_option", "set_model")
    told = _spell(record.model, model) if by_session and record.model and model else None
    return Choices(told, mode, options)


def _spell(choice: ChoiceChannel, value: str) -> str:
    """Return a model or effort in the form that the record's choice sends."""
    return (choice.value or value).replace("{model}", value).replace("{effort}", value)


def make_acpx_record(acpx: AgentRecord, inner: AgentRecord) -> AgentRecord:
    """Return the record of an agent behind acpx.

    Args:
        acpx: Record of acpx: its version, packages and known hazards.
        inner: Record of the agent.

    Raises:
        UnsupportedFeatureError: The agent does not speak ACP, or has no toolbox with Node.
    """
    ours, theirs = acpx.install, inner.install
    assert isinstance(ours, NodeInstall)
    if inner.protocol != "acp":
        raise _make_unsupported_error(inner, "does not speak the Agent Client Protocol")
    if not isinstance(theirs, NodeInstall) or inner.version is None:
        raise _make_unsupported_error(inner, "does not run on Node, as acpx does: the two have one toolbox")
    install = theirs.model_copy(update={"packages": {**theirs.packages, **ours.packages}})
    session: dict[str, Any] = {"hazards": (*inner.session.hazards, *acpx.session.hazards)}
    if is_enough(inner.session.rung, "load"):
        # The session is held by acpx, which needs its process: a copy of the world does not have that.
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


def _make_unsupported_error(inner: AgentRecord, why: str) -> UnsupportedFeatureError:
    """Return the error for an agent that acpx cannot drive. why: predicate of its message."""
    return UnsupportedFeatureError(
        f"agent {inner.name!r} {why}",
        file=inner.source or None,
        key="agent",
        remedy=f"use {inner.name} without {PREFIX}",
    )
