"""Values that travel by name: `${VAR}` and `${VAR:-default}` in environment tables, and what agents log in with.

A value never enters a payload, a log, an image or a sandbox's own configuration. On the embedded stack `submit`
leaves the named values in a private file that is removed with the job; on a cluster the worker's own environment
is the only source. What a sandbox gives back is redacted: an agent may well print its environment.
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
from benchflow.paths import StatePaths
from benchflow.references import find_references, is_plain, replace_references
from benchflow.store import storage_errors, write_atomic

SHORTEST = 8
"""Characters of a value, or of a half of one, that is looked for in what comes out of a sandbox: a shorter one is in
every text by chance.
"""

_NESTED = 3
"""How deep in texts of JSON a value is found."""

_CHUNK = 1024 * 1024
"""Bytes of a file that are looked through at once, beside the longest form of a value."""


def references(task: Task) -> dict[str, bool]:
    """The variables that a task names, and whether each must be set (has no default)."""
    return named_variables(table for _, table in _tables(task))


OF_ORACLE = "the oracle, in the sandbox"
_OF_SANDBOX = "the sandbox"
_OF_VERIFIER = "the verifier, in its sandbox"


class HostVariable(NamedTuple):
    """A variable of the environment of whoever submits a task, which the task takes by its name."""

    name: str
    taker: str
    """What in which sandbox is given its value, as people are told."""


def host_variables(task: Task, manifest: Manifest | None) -> list[HostVariable]:
    """Return the variables that a task takes, and those that its world is given, sorted."""
    found = {HostVariable(name, taker) for taker, table in _tables(task) for name in named_variables([table])}
    if manifest is not None:
        found |= {HostVariable(name, "the environment's services") for name in manifest.forward_env.keys}
    return sorted(found)


def named_variables(tables: Iterable[Mapping[str, str]]) -> dict[str, bool]:
    """Return the variables that tables of values name, and whether each must be set (has no default)."""
    found: dict[str, bool] = {}
    for table in tables:
        for value in table.values():
            for name, default in find_references(value):
                found[name] = found.get(name, False) or default is None
    return found


def _tables(task: Task) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield who is given each table of a task whose values may name variables, and the table."""
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


def agent_references(agent: AgentSpec) -> set[str]:
    """The names of all that an agent is given by name."""
    return {*named_variables([agent.env]), *agent.credentials}


def is_literal(value: str) -> bool:
    """Return whether a value is its own text and names no variable, so that everybody may see it."""
    return is_plain(value)


class Secrets:
    """The named values of one job, as this process can see them."""

    def __init__(self, values: Mapping[str, str], where: str) -> None:
        self._values = values
        self._where = where

    @classmethod
    def of_job(cls, paths: StatePaths, job_id: str) -> Secrets:
        """From the job's private file on this host, else from this process's environment."""
        try:
            content = json.loads(_file(paths, job_id).read_bytes())
            # A file of an earlier version holds the values alone.
            values = content["values"] if isinstance(content.get("values"), dict) else content
            return cls(values, "where the job was submitted")
        except FileNotFoundError:
            return cls(os.environ, "in the worker's environment")

    def check(self, task: Task) -> None:
        """Raise `MissingSecretError` for a variable without default that is not set."""
        for name, required in references(task).items():
            if required and name not in self._values:
                raise MissingSecretError(
                    f"${{{name}}} is not set {self._where}",
                    file=task.config_file,
                    key="env",
                    remedy=f"export {name}=… there, or give a default: ${{{name}:-…}}",
                )

    def check_agent(self, agent: AgentSpec) -> None:
        """Raise `MissingSecretError` for what an agent needs and nobody has set."""
        missing = [
            name for name, required in named_variables([agent.env]).items() if required and name not in self._values
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
        """Raise `MissingSecretError` for a variable that a world is to be given and nobody has set."""
        for name in environment.manifest.forward_env.keys:
            if name not in self._values:
                raise MissingSecretError(
                    f"{name} is not set {self._where}",
                    file=environment.source,
                    key="environment.forward_env.keys",
                    remedy=f"export {name}=… there (it may be empty), or take it out of the manifest",
                )

    def check_judges(self, names: Iterable[str], task: Task) -> None:
        """Raise `MissingSecretError` for the key of a judge that nobody has set, nor the task's verifier has."""
        for name in names:
            if name not in self._values and not any(name in table for _, table in _tables(task)):
                raise MissingSecretError(
                    f"{name}, the key of the task's judge, is not set {self._where}",
                    file=task.config_file,
                    key="judge",
                    remedy=f"export {name}=… there, name another variable with --judge-key, or an endpoint of your own "
                    "with --judge-base-url",
                )

    def forwarded(self, manifest: Manifest) -> dict[str, str]:
        """The variables that a world is given."""
        return {name: self._values[name] for name in manifest.forward_env.keys if name in self._values}

    def value(self, name: str) -> str | None:
        return self._values.get(name)

    def redactor(self, names: Iterable[str]) -> Redactor:
        """Takes out of texts what the names stand for."""
        return Redactor({name: value for name in names if (value := self._values.get(name))})

    def resolve(self, *tables: Mapping[str, str]) -> dict[str, str]:
        """The tables merged, later ones win, with every reference replaced by its value."""
        merged: dict[str, str] = {}
        for table in tables:
            for key, value in table.items():
                merged[key] = replace_references(value, self._value)
        return merged

    def _value(self, name: str, default: str | None) -> str:
        # Unlike in a shell, a variable that is set to nothing is set: so has Harbor, whose tasks we run.
        return self._values.get(name, default or "")


class Redactor:
    """Replaces values by their names, however they are written in JSON."""

    def __init__(self, values: Mapping[str, str]) -> None:
        spelled: dict[str, str] = {}
        for name, value in values.items():
            for part in _parts(value):
                if len(part.strip()) >= SHORTEST:
                    spelled |= dict.fromkeys(_forms(part), f"[{name}]")
        self._spelled = spelled
        longest_first = sorted(spelled, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if spelled else None
        self._bytes: dict[bytes, bytes] = {}
        for text, name in spelled.items():
            # A lone surrogate stands for no bytes, so that no file can hold it.
            with contextlib.suppress(UnicodeEncodeError):
                self._bytes[text.encode("utf-8", "surrogateescape")] = name.encode()
        in_bytes = sorted(self._bytes, key=len, reverse=True)
        self._bytes_pattern = re.compile(b"|".join(map(re.escape, in_bytes)))
        self._longest = max(map(len, in_bytes), default=0)

    def __call__(self, text: str) -> str:
        return self._pattern.sub(lambda match: self._spelled[match.group()], text) if self._pattern else text

    def line(self, line: str) -> str:
        """The same for a line of JSON, which stays one: a number may be a value, too."""
        if self._pattern is None or self._pattern.search(line) is None:
            return line
        return json.dumps(self.within(json.loads(line)), ensure_ascii=False)

    def within(self, content: Any) -> Any:
        """Data without the values, at whatever depth."""
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
        """The same for what scored: a verifier or a reward function may have run something that prints what it has."""
        events = [event.model_copy(update={"meta": self.within(event.meta)}) for event in result.events]
        told = {"warnings": result.warnings, "errors": result.errors, "metadata": result.metadata}
        error = self.cut(result.error) if result.error else None
        return result.model_copy(update={"events": events, "error": error, **self.within(told)})

    def cut(self, text: str) -> str:
        """The same for what was cut out of a longer text: a value may have been cut in half at its ends."""
        text = self(text)
        for value, name in self._spelled.items():
            pieces = range(len(value) - 1, SHORTEST - 1, -1)
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
        """Take the values out of all files below a directory of the host, if there is one, whatever its content is.

        Raises `StoreError`, and `UnsafePathError` for a tree that is too deep or too large to be looked through.
        """
        if not self._bytes or not directory.is_dir():
            return
        with storage_errors(directory), ConfinedDirectory(directory) as confined:
            for entry in confined.entries():
                self._clean(confined, entry.name)

    def _clean(self, directory: ConfinedDirectory, name: str) -> None:
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
        """Yield a file without the values, piece by piece, and whether one was in the piece."""
        held = b""
        while True:
            read = source.read(_CHUNK)
            held += read
            # A match that begins in what is left of this piece may end in the next one.
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


def _leaves(content: object) -> Iterable[str]:
    if isinstance(content, str):
        yield content
    for inner in content.values() if isinstance(content, dict) else content if isinstance(content, list) else ():
        yield from _leaves(inner)


def _parts(value: str) -> set[str]:
    """What of a value must not be seen: of a file of credentials, every text in it, and each line of it."""
    try:
        content = json.loads(value)
    except ValueError:
        content = value
    texts = {*_leaves(content)} if isinstance(content, dict | list) else {value}
    return {part for text in texts for part in (text, *text.splitlines())}


def _forms(part: str) -> Iterable[str]:
    """A text, and how it is written in JSON, also where that is a text in JSON itself: what a tool has printed."""
    for ascii in (True, False):
        form = part
        for _ in range(_NESTED + 1):
            yield form
            form = json.dumps(form, ensure_ascii=ascii)[1:-1]


def leave(paths: StatePaths, job_id: str, names: set[str], given: Mapping[str, str]) -> None:
    """Leave the named values of this process's environment, and those that were given, for the workers of this host."""
    values = {name: os.environ[name] for name in sorted(names) if name in os.environ} | dict(given)
    with storage_errors(paths.secrets):
        paths.secrets.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomic(_file(paths, job_id), json.dumps({"job": job_id, "values": values}).encode(), mode=0o600)


def left(paths: StatePaths) -> Iterator[tuple[str, float]]:
    """Yield the jobs whose secrets are on this host, each with the time at which they were left there."""
    for file in sorted(paths.secrets.glob("*.json")):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            job = json.loads(file.read_bytes()).get("job")
            if isinstance(job, str):
                yield job, file.stat().st_mtime


def remove(paths: StatePaths, job_id: str) -> None:
    _file(paths, job_id).unlink(missing_ok=True)


def _file(paths: StatePaths, job_id: str) -> Path:
    return paths.secrets / f"{short_hash(job_id, 16)}.json"
