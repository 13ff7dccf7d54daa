"""The Environment plane's data: the manifest, what a started world tells of itself, and its state.

A manifest is the whole integration surface of a benchmark: which image the world is, which services make it up, when
it is ready, and which files are its state. Fields and defaults are those of the published format. What a manifest
can't say is said in code: see `benchflow.contracts.world`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any, Literal, Protocol

from pydantic import Field

from benchflow.contracts.base import ArtifactRef, Model
from benchflow.errors import StateError

DEFAULT_TASK_KEY = "BENCHFLOW_TASK_ID"
BASELINE = "baseline"
"""The name of the snapshot that `reset` goes back to; it is taken when the world is ready."""


class TaskSelection(Model):
    """How one world serves many tasks.

    mechanism: `image`, the task's data is in the task's own image; `env_var`, the task's id is told at run time, in the
    variable `key`: to the sandbox's first process and all others (`entrypoint`), or to all but the first (`exec`).
    """

    mechanism: Literal["env_var", "image"] = "env_var"
    key: str = DEFAULT_TASK_KEY
    inject_into: Literal["entrypoint", "exec"] = "entrypoint"


class Service(Model):
    """A service that the framework starts. command: a shell's; port: TCP; health_path: of its HTTP probe."""

    name: str
    command: str
    port: int
    health_path: str = "/health"


class Readiness(Model):
    """When the world is healthy. http: URLs, as the sandbox sees them; empty means those of the started services.

    tcp: ports that must accept a connection. timeout_sec: one deadline for all of it.
    """

    http: tuple[str, ...] = ()
    tcp: tuple[int, ...] = ()
    timeout_sec: float = Field(default=120.0, gt=0)


class ForwardEnv(Model):
    """Variables of whoever submits the job that the world is given, by name."""

    keys: tuple[str, ...] = ()


class StateTable(Model):
    """Which files are the world's state: absolute paths in the sandbox."""

    kind: Literal["sqlite"] = "sqlite"
    paths: tuple[str, ...] = ()
    observe: tuple[str, ...] = ()
    """URLs, as the sandbox sees them, that must answer a GET in a copy of the world as they do in the world itself."""


class Manifest(Model):
    """An environment: exactly one of `image` (the world itself) and `base_image` (what tasks build FROM).

    ports: reachable from the host besides those of services. owns_lifecycle: the image's entrypoint starts the
    services, else the framework does. keep_alive: the world stays up for the verifier. isolation: `persistent` means
    that all episodes of a job share one sandbox. state: None for a stateless world.
    """

    name: str
    image: str | None = None
    base_image: str | None = None
    ports: tuple[int, ...] = ()
    owns_lifecycle: bool = True
    keep_alive: bool = True
    isolation: Literal["per_task", "persistent"] = "per_task"
    task_selection: TaskSelection = TaskSelection()
    services: tuple[Service, ...] = ()
    readiness: Readiness = Readiness()
    forward_env: ForwardEnv = ForwardEnv()
    state: StateTable | None = None

    @property
    def is_stateful(self) -> bool:
        return self.state is not None

    @property
    def has_image(self) -> bool:
        """Whether it names the sandbox's image, or what that is built FROM. Only an environment in code need not."""
        return self.image is not None or self.base_image is not None

    def task_env(self, task: str, where: Literal["entrypoint", "exec"]) -> dict[str, str]:
        """The variables by which the world learns its task, for the environment of the whole sandbox or of commands."""
        chosen = self.task_selection
        if chosen.mechanism != "env_var" or chosen.inject_into != where:
            return {}
        return {chosen.key: task}


class EnvironmentRef(Model):
    """A manifest, or an environment in code, as a job holds it."""

    manifest: Manifest
    """Of an environment in code, what its class declares, in the same fields."""

    digest: str
    """Of the manifest and its image's files; of an environment in code, of what its class declares and its file."""

    source: str
    """The file that the manifest was read from; of an environment in code, its name."""

    image: ArtifactRef | None = None
    """The build context (`image/` beside the manifest) of the image that the manifest names, if it comes with one."""

    unproven: str | None = None
    """Why the answers of its services are not proven to be the same in a copy, where the job branches; else None."""

    code: str | None = None
    """`module:Class`, or the name of an entry point of the group `benchflow.environments`; None for a manifest."""

    code_root: str | None = None
    """Directory in which the module is looked for after the installed ones: the submitter's, of its host."""


def unproven_warning(environment: EnvironmentRef) -> str:
    """Return the warning of a branch over a world whose copies are not proven to answer as it does."""
    more = f"; see bench env check {environment.source}" if environment.code is None else ""
    return (
        f"{environment.manifest.name}: services start anew in each child, and V(s) is wrong where they hold state in "
        f"memory: {environment.unproven}{more}"
    )


# --- a started world ------------------------------------------------------------------------------------


class ServiceStatus(Model):
    """A declared service. `left_out`: this image does not have it. exit_code: of one that ended, where it is known."""

    name: str
    port: int
    state: Literal["running", "left_out", "ended"]
    exit_code: int | None = None


class ProbeAnswer(Model):
    """A readiness probe. target: the URL, or `tcp://localhost:PORT`. answer: the last thing that it met.

    seconds: from the start of the wait until it was healthy; None for one that never was.
    """

    target: str
    healthy: bool
    answer: str
    seconds: float | None = None


class Observation(Model):
    """What a service answered to a GET. Two are of the same state if status and digest are equal."""

    url: str
    """As it was declared, or found in a verifier; `state` for the state of an environment in code."""

    status: int | None = None
    """HTTP status; None where there was no answer."""

    digest: str = ""
    """SHA-256 of the body, in hex: of JSON, whatever the order of its keys and its spaces."""

    size: int = 0
    """Bytes of the body."""

    body: str | None = None
    """The body itself, as text, where it was asked for and is not too long."""

    error: str = ""
    """Why there was no answer."""

    @property
    def is_comparable(self) -> bool:
        """Whether it shows a state, and is no error or redirect."""
        return self.status is not None and 200 <= self.status < 300


class ReadyWorld(Model):
    """What is known of a world that became ready. services: all that were declared.

    ports: where this host reaches each declared port, as `host:port`. seconds: from the start of its services, or of
    its sandbox, until all probes were healthy.
    """

    services: tuple[ServiceStatus, ...] = ()
    probes: tuple[ProbeAnswer, ...] = ()
    ports: dict[int, str] = {}
    seconds: float = 0.0


# --- its state ------------------------------------------------------------------------------------------


class StateFile(Model):
    """One file of a snapshot: a database, or what an environment in code has saved under a name.

    path: where the world has it, or the name; file: its name in the snapshot's directory.

    present: False for one that was not there, and that a restore removes. sha256, size: of the copy, bytes.
    mode, uid, gid: of the original.
    """

    path: str
    present: bool
    file: str | None = None
    sha256: str | None = None
    size: int = 0
    mode: int = 0o644
    uid: int = 0
    gid: int = 0


class StateSnapshot(Model):
    """The state at one moment. directory: in the sandbox. fence: a value that only these copies hold, by which a
    restore proves that the world sees them. taken_at: seconds since the epoch. seconds: how long it took.
    """

    name: str
    directory: str
    fence: str
    files: tuple[StateFile, ...]
    taken_at: float
    seconds: float

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


class TableState(Model):
    """A table. digest: of its rows, whatever their order. values: rows as lists, in the order of the key; a BLOB is
    `{"blob": <hex>}`. Left out (None) where there are more than were asked for.
    """

    name: str
    columns: tuple[str, ...]
    rows: int
    digest: str
    values: list[list[Any]] | None = None


class DatabaseState(Model):
    path: str
    present: bool
    tables: tuple[TableState, ...] = ()


class WorldState(Model):
    """The whole state, as verifiers and rewards read it. digest: equal for an equal state."""

    databases: tuple[DatabaseState, ...] = ()
    digest: str
    data: Any = None
    """State of an environment in code: what JSON knows. None where databases are the state."""

    @classmethod
    def of(cls, data: Any) -> WorldState:
        """Return a state that is JSON, with its digest, which is the same whatever the order of keys.

        Raises:
            StateError: It holds what JSON does not know, such as NaN.
        """
        try:
            text = json.dumps(data, sort_keys=True, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise StateError(
                f"the state is not JSON: {error}", key="query", remedy="return texts, finite numbers, lists and objects"
            ) from error
        return cls(data=data, digest=hashlib.sha256(text.encode()).hexdigest())

    def table(self, path: str, name: str) -> TableState:
        """One table of one database. Raises `KeyError`."""
        for database in self.databases:
            for table in database.tables:
                if (database.path, table.name) == (path, name):
                    return table
        raise KeyError(f"{path}: {name}")


class RowChange(Model):
    """A row of the same key with other values."""

    before: dict[str, Any]
    after: dict[str, Any]


class TableDiff(Model):
    """What differs in a table. Rows are matched by the primary key, else as a whole. change: of the table itself.

    left_out: rows beyond the limit that was asked for; the counts are of all.
    """

    name: str
    change: Literal["added", "removed", "columns"] | None = None
    n_added: int = 0
    n_removed: int = 0
    n_changed: int = 0
    added: list[dict[str, Any]] = []
    removed: list[dict[str, Any]] = []
    changed: list[RowChange] = []
    left_out: int = 0


class DatabaseDiff(Model):
    path: str
    change: Literal["appeared", "disappeared"] | None = None
    tables: tuple[TableDiff, ...] = ()


class StateDiff(Model):
    """What differs between two states; databases and tables without a difference are left out."""

    databases: tuple[DatabaseDiff, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not self.databases


class StateStore(Protocol):
    """Captures and puts back files of state in a sandbox. What `Environment` leaves to it."""

    async def snapshot(self, name: str, paths: Sequence[str]) -> StateSnapshot: ...

    async def restore(self, snapshot: StateSnapshot, *, live: bool) -> None:
        """live: into files that processes have open, through the database's own backup interface; else in their place,
        with nobody at them.
        """
        ...
