"""Secrets and other values that are referenced by name: `${VAR}`, `${VAR:-default}`, and agents' credentials.

A value never enters a payload, a log, an image or a sandbox's own configuration. On the embedded stack `submit` stores
the named values in a private file that is removed with the job; on a cluster the worker's own environment is the only
source. Output of a sandbox is redacted: an agent may well print its environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from benchflow.confined import ConfinedDirectory
from benchflow.contracts.environment import EnvironmentRef, Manifest
from benchflow.contracts.ids import short_hash
from benchflow.contracts.job import AgentSpec
from benchflow.contracts.reward import VerifyResult
from benchflow.contracts.task import Task
from benchflow.errors import MissingSecretError
from benchflow.host_files import raise_storage_errors, write_atomic
from benchflow.paths import StatePaths
from benchflow.references import find_references, is_plain, replace_references

MIN_LENGTH = 8
"""Minimum length of a value, or of a cut-off part of one, that is redacted: shorter ones occur in any text by chance.
"""

_NESTED = 3
"""Maximum depth of JSON within JSON strings in which a value is found."""

_CHUNK = 1024 * 1024
"""Bytes of a file that are searched at a time, in addition to the longest form of a value."""


def list_task_variables(task: Task) -> dict[str, bool]:
    """Return the variables that a task names, and whether each is required, which means without a default."""
    return find_variables(table for _, table in _list_tables(task))


OF_ORACLE = "the oracle, in the sandbox"
_OF_SANDBOX = "the sandbox"
_OF_VERIFIER = "the verifier, in its sandbox"


class HostVariable(NamedTuple):
    """Variable of the submitter's environment that a task names."""

    name: str
    taker: str
    """Which part, in which sandbox, is given the value; for display."""


def list_host_variables(task: Task, manifest: Manifest | None) -> list[HostVariable]:
    """Return the variables that a task and its world are given, sorted."""
    found = {HostVariable(name, taker) for taker, table in _list_tables(task) for name in find_variables([table])}
    if manifest is not None:
        found |= {HostVariable(name, "the environment's services") for name in manifest.forward_env.keys}
    return sorted(found)


def find_variables(tables: Iterable[Mapping[str, str]]) -> dict[str, bool]:
    """Return the variables that tables of values name, and whether each is required, which means without a default."""
    found: dict[str, bool] = {}
    for table in tables:
        for value in table.values():
            for name, default in find_references(value):
                found[name] = found.get(name, False) or default is None
    return found


def _list_tables(task: Task) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield the tables of a task whose values may name variables, each with its taker."""
    verifiers = [task.verifier, *(step.verifier for step in task.steps)]
    yield OF_ORACLE, task.oracle.env
    sandboxes = [(_OF_SANDBOX, task.sandbox)]
    for verifier in verifiers:
        yield _OF_VERIFIER, verifier.env
        if verifier.sandbox is not None:
            sandboxes.append((_OF_VERIFIER, verifier.sandbox))
    for taker, sandbox in sandboxes:
        yield taker, sandbox.env
        yield from ((taker, command.env) for command in sandbox.setup_commands)
    for server in task.sandbox.mcp_servers:
        yield from ((f"the tool server {server.name!r} of the agent", table) for table in (server.env, server.headers))


def list_agent_references(agent: AgentSpec) -> set[str]:
    """Return the names of an agent's variables and credentials."""
    return {*find_variables([agent.env]), *agent.credentials}


def is_literal(value: str) -> bool:
    """Return whether a value references no variable: it is its own text, and may be secret."""
    return is_plain(value)


class Secrets:
    """Named values of one job, as far as this process has them."""

    def __init__(self, values: Mapping[str, str], where: str) -> None:
        """Make it.

        Args:
            values: Values by name.
            where: Where they come from, for errors (`in this environment`).
        """
        self._values = values
        self._where = where

    @classmethod
    def of_job(cls, paths: StatePaths, job_id: str) -> Secrets:
        """Return the values in the job's private file on this host; without one, this process's environment."""
        try:
            content = json.loads(_make_path(paths, job_id).read_bytes())
            # A file of an earlier version has only the values.
            values = content["values"] if isinstance(content.get("values"), dict) else content
            return cls(values, "where the job was submitted")
        except FileNotFoundError:
            return cls(os.environ, "in the worker's environment")

    def check(self, task: Task) -> None:
        """Raise `MissingSecretError` if a required variable of a task is not set."""
        for name, required in list_task_variables(task).items():
            if required and name not in self._values:
                raise MissingSecretError(
                    f"${{{name}}} is not set {self._where}",
                    file=task.config_file,
                    key="env",
                    remedy=f"export {name}=… there, or give a default: ${{{name}:-…}}",
                )

    def check_agent(self, agent: AgentSpec) -> None:
        """Raise `MissingSecretError` if a required variable of an agent is not set, or none of its credentials."""
        missing = [
            name for name, required in find_variables([agent.env]).items() if required and name not in self._values
        ]
        for name in missing:
            key = next(key for key, value in agent.env.items() if f"${{{name}}}" in value)
            raise MissingSecretError(
                f"the value of {key} for agent {agent.name!r} is not known {self._where}",
                key="--agent-env",
                remedy=f"give it again: --agent-env {key}=…, or export it there and give --agent-env {key}",
            )
        if agent.credentials and not any(name in self._values for name in agent.credentials):
            raise MissingSecretError(
                f"agent {agent.name!r} has nothing to log in with {self._where}",
                key="agent",
                remedy=f"export {' or '.join(agent.credentials)} there, or name an endpoint of your own: --base-url",
            )

    def check_world(self, environment: EnvironmentRef) -> None:
        """Raise `MissingSecretError` if a variable that a world is given is not set."""
        for name in environment.manifest.forward_env.keys:
            if name not in self._values:
                raise MissingSecretError(
                    f"{name} is not set {self._where}",
                    file=environment.source,
                    key="environment.forward_env.keys",
                    remedy=f"export {name}=… there (it may be empty), or take it out of the manifest",
                )

    def check_judges(self, names: Iterable[str], task: Task) -> None:
        """Raise `MissingSecretError` if a judge's key is set neither here nor in a table of the task.

        Args:
            names: Names of the judges' keys.
            task: The task.
        """
        for name in names:
            if name not in self._values and not any(name in table for _, table in _list_tables(task)):
                raise MissingSecretError(
                    f"{name}, the key of the task's judge, is not set {self._where}",
                    file=task.config_file,
                    key="judge",
                    remedy=f"export {name}=… there, name another variable with --judge-key, or an endpoint of your own "
                    "with --judge-base-url",
                )

    def forwarded(self, manifest: Manifest) -> dict[str, str]:
        """Return the variables that a world is given and that are set."""
        return {name: self._values[name] for name in manifest.forward_env.keys if name in self._values}

    def value(self, name: str) -> str | None:
        """Return a value; None if it is not set."""
        return self._values.get(name)

    def redactor(self, names: Iterable[str]) -> Redactor:
        """Return a redactor of the values that have these names."""
        return Redactor({name: value for name in names if (value := self._values.get(name))})

    def resolve(self, *tables: Mapping[str, str]) -> dict[str, str]:
        """Return the tables merged, later ones override, with every reference replaced by its value."""
        merged: dict[str, str] = {}
        for table in tables:
            for key, value in table.items():
                merged[key] = replace_references(value, self._value)
        return merged

    def _value(self, name: str, default: str | None) -> str:
        # Unlike in a shell, a variable that is set to "" counts as set: as in Harbor, whose tasks we run.
        return self._values.get(name, default or "")


class Redactor:
    """Replaces values by `[NAME]`, in plain text and as escaped in JSON."""

    def __init__(self, values: Mapping[str, str]) -> None:
        """Make it for values by name; those shorter than `MIN_LENGTH` are not replaced."""
        spelled: dict[str, str] = {}
        for name, value in values.items():
            for part in _split_value(value):
                if len(part.strip()) >= MIN_LENGTH:
                    spelled |= dict.fromkeys(_list_forms(part), f"[{name}]")
        self._spelled = spelled
        longest_first = sorted(spelled, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if spelled else None
        self._bytes: dict[bytes, bytes] = {}
        for text, name in spelled.items():
            # A lone surrogate encodes no bytes, so no file can contain it.
            with contextlib.suppress(UnicodeEncodeError):
                self._bytes[text.encode("utf-8", "surrogateescape")] = name.encode()
        in_bytes = sorted(self._bytes, key=len, reverse=True)
        self._bytes_pattern = re.compile(b"|".join(map(re.escape, in_bytes)))
        self._longest = max(map(len, in_bytes), default=0)

    def __call__(self, text: str) -> str:
        """Return a text with the values replaced."""
        return self._pattern.sub(lambda match: self._spelled[match.group()], text) if self._pattern else text

    def line(self, line: str) -> str:
        """Return a line of JSON with the values replaced; it stays JSON even where a value is a number."""
        if self._pattern is None or self._pattern.search(line) is None:
            return line
        return json.dumps(self.within(json.loads(line)), ensure_ascii=False)

    def within(self, content: Any) -> Any:
        """Return JSON data with the values replaced in keys, strings and numbers, at any depth."""
        if isinstance(content, dict):
            return {self(str(key)): self.within(inner) for key, inner in content.items()}
        if isinstance(content, list):
            return [self.within(inner) for inner in content]
        if content is None or isinstance(content, bool):
            return content
        text = str(content)
        cleaned = self(text)
        return content if cleaned == text else cleaned

    def result(self, result: VerifyResult) -> VerifyResult:
        """Return a verifier's result with the values replaced: code that scores may print its environment."""
        events = [event.model_copy(update={"meta": self.within(event.meta)}) for event in result.events]
        told = {"warnings": result.warnings, "errors": result.errors, "metadata": result.metadata}
        error = self.cut(result.error) if result.error else None
        return result.model_copy(update={"events": events, "error": error, **self.within(told)})

    def cut(self, text: str) -> str:
        """Return an excerpt of a text with the values replaced, and with them parts that were cut at its ends."""
        text = self(text)
        for value, name in self._spelled.items():
            pieces = range(len(value) - 1, MIN_LENGTH - 1, -1)
            for piece in (value[-size:] for size in pieces):
                if text.startswith(piece):
                    text = name + text[len(piece) :]
                    break
            body = text.rstrip("…")
            for piece in (value[:size] for size in pieces):
                if body.endswith(piece):
                    text = body[: -len(piece)] + name + text[len(body) :]
                    break
        return text

    def clean_below(self, directory: Path) -> None:
        """Replace the values in all files below a directory of the host, of whatever content; no directory is success.

        Raises:
            StoreError: A file cannot be read or written.
            UnsafePathError: The tree is too deep or too large.
        """
        if not self._bytes or not directory.is_dir():
            return
        with raise_storage_errors(directory), ConfinedDirectory(directory) as confined:
            for entry in confined.entries():
                self._clean(confined, entry.name)

    def _clean(self, directory: ConfinedDirectory, name: str) -> None:
        """Replace the values in one regular file, which keeps its mode; other kinds and missing files are skipped."""
        with contextlib.ExitStack() as opened:
            try:
                if not stat.S_ISREG(directory.status(name).st_mode):
                    return
                source = opened.enter_context(directory.open(name))
            except FileNotFoundError:
                return
            if not any(found for _, found in self._pieces(source)):
                return
            source.seek(0)
            mode = stat.S_IMODE(os.fstat(source.fileno()).st_mode)
            with directory.replacing(name, mode) as target:
                for piece, _ in self._pieces(source):
                    target.write(piece)

    def _pieces(self, source: BinaryIO) -> Iterator[tuple[bytes, bool]]:
        """Yield a file with the values replaced, in pieces, and for each piece whether any was replaced."""
        held = b""
        while True:
            read = source.read(_CHUNK)
            held += read
            # A match that begins in the last `_longest - 1` bytes may end in the next piece, so they are held back.
            end = len(held) - self._longest + 1 if read else len(held)
            written: list[bytes] = []
            at = 0
            for match in self._bytes_pattern.finditer(held):
                if match.start() >= end:
                    break
                written += [held[at : match.start()], self._bytes[match.group()]]
                at = match.end()
            rest = max(at, end)
            yield b"".join([*written, held[at:rest]]), bool(written)
            held = held[rest:]
            if not read:
                return


def _list_strings(content: object) -> Iterable[str]:
    """Yield the strings in JSON data."""
    if isinstance(content, str):
        yield content
    for inner in content.values() if isinstance(content, dict) else content if isinstance(content, list) else ():
        yield from _list_strings(inner)


def _split_value(value: str) -> set[str]:
    """Return the secret parts of a value: itself and its lines; for JSON (a credential file), those of each string."""
    try:
        content = json.loads(value)
    except ValueError:
        content = value
    texts = {*_list_strings(content)} if isinstance(content, dict | list) else {value}
    return {part for text in texts for part in (text, *text.splitlines())}


def _list_forms(part: str) -> Iterable[str]:
    """Yield a text, and its forms as escaped in JSON, once or nested: a tool may print JSON in a JSON string."""
    for ascii in (True, False):
        form = part
        for _ in range(_NESTED + 1):
            yield form
            form = json.dumps(form, ensure_ascii=ascii)[1:-1]


def store_secrets(paths: StatePaths, job_id: str, names: set[str], given: Mapping[str, str]) -> None:
    """Store a job's secrets in its private file, for the workers of this host.

    Args:
        paths: State directory.
        job_id: Workflow id of the job.
        names: Names of variables that are taken from this process's environment, if set.
        given: Further values by name.
    """
    values = {name: os.environ[name] for name in sorted(names) if name in os.environ} | dict(given)
    with raise_storage_errors(paths.secrets):
        paths.secrets.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomic(_make_path(paths, job_id), json.dumps({"job": job_id, "values": values}).encode(), mode=0o600)


def list_stored_secrets(paths: StatePaths) -> Iterator[tuple[str, float]]:
    """Yield the jobs whose secrets are on this host, each with the time at which they were stored."""
    for file in sorted(paths.secrets.glob("*.json")):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            job = json.loads(file.read_bytes()).get("job")
            if isinstance(job, str):
                yield job, file.stat().st_mtime


def remove_secrets(paths: StatePaths, job_id: str) -> None:
    """Remove a job's private file; missing is success."""
    _make_path(paths, job_id).unlink(missing_ok=True)


def _make_path(paths: StatePaths, job_id: str) -> Path:
    return paths.secrets / f"{short_hash(job_id, 16)}.json"
