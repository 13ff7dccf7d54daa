"""Check values of a task file by rules that types can't express, or that span several fields."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from benchflow.contracts.sandbox import NetworkMode
from benchflow.contracts.sandbox_config import SandboxConfig
from benchflow.contracts.task import ArtifactSpec
from benchflow.contracts.verifier import VerifierConfig
from benchflow.tasks.reward_table import check_reward
from benchflow.tasks.schema import DocumentTables, TaskTables
from benchflow.tasks.task_spellings import Spelling
from benchflow.user_files.problems import KeyPath

SCHEMA_VERSIONS = ("1", "1.0", "1.1", "1.2", "1.3", "1.4")


def check_values(tables: TaskTables, spelling: Spelling, *, native: bool) -> None:
    """Report every value of `tables` that its type allows and its meaning doesn't.

    Args:
        tables: The validated tables of a task file.
        spelling: Receives the problems.
        native: Whether the file is a task.md, in which an unknown `schema_version` is an error, not a warning.
    """
    _check_version(tables.schema_version, spelling, native=native)
    _check_name(tables.task.name, spelling)
    _check_sandbox(tables.sandbox, ("sandbox",), spelling)
    mode = tables.sandbox.network_mode
    _check_hosts(tables.agent.allowed_hosts, tables.agent.network_mode or mode, ("agent",), spelling)
    _check_verifier(tables.verifier, mode, ("verifier",), spelling)
    _check_env(tables.oracle.env, ("oracle", "env"), spelling)
    _check_artifacts(tables.artifacts, (), spelling)
    check_reward(tables.reward, spelling)
    for index, step in enumerate(tables.steps):
        at: KeyPath = ("steps", index)
        _check_hosts(step.agent.allowed_hosts, step.agent.network_mode or mode, (*at, "agent"), spelling)
        _check_verifier(step.verifier, mode, (*at, "verifier"), spelling)
        _check_artifacts(step.artifacts, at, spelling)
    for name, role in tables.agents.roles.items() if isinstance(tables, DocumentTables) else ():
        _check_env(role.env, ("agents", "roles", name, "env"), spelling)


def _report_error(spelling: Spelling, at: KeyPath, message: str, suggestion: str | None = None) -> None:
    spelling.problems.error("value", spelling.file, message, key=spelling.key(at), suggestion=suggestion)


def _warn(spelling: Spelling, at: KeyPath, message: str, suggestion: str | None = None) -> None:
    spelling.problems.warn("value", spelling.file, message, key=spelling.key(at), suggestion=suggestion)


def _check_version(version: str | None, spelling: Spelling, *, native: bool) -> None:
    if version is None or version in SCHEMA_VERSIONS:
        return
    message = f"version {version!r} is not known here"
    hint = "known are " + ", ".join(SCHEMA_VERSIONS)
    report = _report_error if native else _warn
    report(spelling, ("schema_version",), message, hint)


def _check_name(name: str | None, spelling: Spelling) -> None:
    if name is not None and re.fullmatch(r"[^/\s]+/[^/\s]+", name) is None:
        _warn(spelling, ("task", "name"), f"{name!r} has no organisation", "write it as `org/name`")


def _check_sandbox(sandbox: SandboxConfig, at: KeyPath, spelling: Spelling) -> None:
    _check_env(sandbox.env, (*at, "env"), spelling)
    _check_hosts(sandbox.allowed_hosts, sandbox.network_mode, at, spelling)
    if sandbox.workdir is not None and not PurePosixPath(sandbox.workdir).is_absolute():
        _report_error(spelling, (*at, "workdir"), f"must be an absolute path, not {sandbox.workdir!r}")
    if sandbox.network_mode == "allowlist" and not sandbox.allowed_hosts:
        _report_error(
            spelling,
            (*at, "allowed_hosts"),
            "an allowlist needs hosts",
            'name them, or write network_mode "no-network"',
        )
    for index, server in enumerate(sandbox.mcp_servers):
        place: KeyPath = (*at, "mcp_servers", index)
        wanted = "command" if server.transport == "stdio" else "url"
        if not getattr(server, wanted):
            _report_error(spelling, (*place, wanted), f"is required by transport `{server.transport}`")
    for index, command in enumerate(sandbox.setup_commands):
        _check_env(command.env, (*at, "setup_commands", index, "env"), spelling)


def _check_hosts(hosts: list[str], mode: NetworkMode, at: KeyPath, spelling: Spelling) -> None:
    if hosts and mode != "allowlist":
        _report_error(
            spelling,
            (*at, "allowed_hosts"),
            f"has no effect with network_mode {mode!r}",
            'write network_mode "allowlist", or remove the hosts',
        )


def _check_verifier(verifier: VerifierConfig, sandbox_mode: NetworkMode, at: KeyPath, spelling: Spelling) -> None:
    low, high = verifier.reward_range
    if low > 0 or high < 1:
        _report_error(
            spelling,
            (*at, "reward_range"),
            f"[{low:g}, {high:g}] is narrower than [0, 1]",
            "a range may only widen [0, 1]",
        )
    _check_env(verifier.env, (*at, "env"), spelling)
    _check_hosts(verifier.allowed_hosts, verifier.network_mode or sandbox_mode, at, spelling)
    if verifier.sandbox is not None:
        _check_sandbox(verifier.sandbox, (*at, "sandbox"), spelling)
        if verifier.sandbox_mode != "separate":
            mode = verifier.sandbox_mode
            _report_error(spelling, (*at, "sandbox"), f'has no effect with sandbox_mode "{mode}"', "remove one of them")


def _check_env(env: dict[str, str], at: KeyPath, spelling: Spelling) -> None:
    for name, value in env.items():
        if not name or "=" in name or "\0" in name:
            _report_error(spelling, (*at, name), f"{name!r} can't be the name of an environment variable")
        elif "\0" in value:
            _report_error(spelling, (*at, name), "contains a NUL character")


def _check_artifacts(artifacts: list[ArtifactSpec], at: KeyPath, spelling: Spelling) -> None:
    for index, artifact in enumerate(artifacts):
        place: KeyPath = (*at, "artifacts", index)
        if not artifact.source:
            _report_error(spelling, (*place, "source"), "is empty")
        destination = PurePosixPath(artifact.destination or "x")
        if destination.is_absolute() or ".." in destination.parts:
            _report_error(
                spelling,
                (*place, "destination"),
                f"must stay inside the artifacts directory, not {artifact.destination!r}",
                "write a relative path",
            )
