"""Data of the Environment plane: the manifest, the status of a started world, and its captured state.

A manifest is the whole integration surface of a benchmark: which image the world is, which services make it up, when
it is ready, and which files are its state. Fields and defaults are those of the published format. A world that a
manifest cannot describe is a class: see `benchflow.contracts.world`.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from pydantic import Field

from benchflow.contracts.base import ArtifactRef, Model
from benchflow.errors import StateError

DEFAULT_TASK_KEY = "BENCHFLOW_TASK_ID"
"""Variable that holds the task's id, unless the manifest names another one."""

BASELINE = "baseline"
"""Name of the snapshot that `reset` goes back to; it is taken when the world is ready."""


class TaskSelection(Model):
    """The manifest's table `task_selection`: how one world serves many tasks."""

    mechanism: Literal["env_var", "image"] = "env_var"
    """How the world learns its task: `env_var`, from the task's id in the variable `key`; `image`, from the data in the
    task's own image, with no variable."""

    key: str = DEFAULT_TASK_KEY
    """Variable that holds the task's id, which is the name of its directory. Only for `env_var`."""

    inject_into: Literal["entrypoint", "exec"] = "entrypoint"
    """Processes that get the variable: `entrypoint`, the sandbox's first process and all others; `exec`, all but the
    first: services, agent and verifier. Only for `env_var`."""


class Service(Model):
    """A service that the framework starts in the sandbox, as root, if the sandbox's image has it."""

    name: str
    """Name, unique in the manifest; it names log files: at most 100 letters, digits, `.`, `_` and `-`."""

    command: str
    """Command line for `/bin/sh -c`. An image lacks the service if its first word, run with `--help`, fails there."""

    port: int
    """TCP port of the sandbox on which it listens, unique in the manifest. Nothing else may listen on it before."""

    health_path: str = "/health"
    """Path of its HTTP readiness probe, with a leading `/`. Has no effect where `readiness.http` names URLs."""


class Readiness(Model):
    """The manifest's table `readiness`: the probes that must succeed before an agent starts."""

    http: tuple[str, ...] = ()
    """URLs, as the sandbox sees them, that must answer a GET with a status from 200 to 399. Empty: those of the started
    services, `http://localhost:PORT` with their `health_path`."""

    tcp: tuple[int, ...] = ()
    """Ports of the sandbox's localhost that must accept a connection, besides the URLs."""

    timeout_sec: float = Field(default=120.0, gt=0)
    """Seconds until all probes together must have succeeded."""


class ForwardEnv(Model):
    """The manifest's table `forward_env`: the submitter's variables that the world is given."""

    keys: tuple[str, ...] = ()
    """Names of the variables. Services, or the image's entrypoint, get the values; results and errors never show
    them."""


class StateTable(Model):
    """The manifest's table `state`: where the state of the world lies."""

    kind: Literal["sqlite"] = "sqlite"
    """Format of the files. An environment in code has the default, whatever it saves."""

    paths: tuple[str, ...] = ()
    """Absolute paths of the databases in the sandbox. A missing file is recorded as absent, and restored as absent.
    Empty for an environment in code, which captures its state itself."""

    observe: tuple[str, ...] = ()
    """URLs, as the sandbox sees them, that must answer a GET in a copy of the world as they do in the world itself.
    Empty: those that the files of the task's verifiers name."""


class Manifest(Model):
    """An environment: exactly one of `image` (the world itself) and `base_image` (the image that tasks build FROM).

    An environment in code is described in the same fields, and need not name an image.
    """

    name: str
    """Name of the environment, on one line."""

    image: str | None = None
    """Image of the sandboxes, in place of each task's own. None if `base_image` is given."""

    base_image: str | None = None
    """Image that each task's own Dockerfile must build FROM, which is checked at submit. None if `image` is given."""

    ports: tuple[int, ...] = ()
    """TCP ports of the sandbox that its host must reach, besides those of `services`."""

    owns_lifecycle: bool = True
    """Whether the image's entrypoint starts the services. If not, the framework starts those in `services`, or the
    class of an environment in code starts them."""

    keep_alive: bool = True
    """Whether the world stays up for the verifier. If not, it ends after the last step, before the verifier runs."""

    isolation: Literal["per_task", "persistent"] = "per_task"
    """`per_task`: each rollout has a sandbox of its own. `persistent`: the rollouts of a job share one sandbox, one
    after another, each in the state that the last one left."""

    task_selection: TaskSelection = TaskSelection()
    """How the world learns its task."""

    services: tuple[Service, ...] = ()
    """Services that the framework starts. Empty if `owns_lifecycle`."""

    readiness: Readiness = Readiness()
    """Probes that must succeed before an agent starts."""

    forward_env: ForwardEnv = ForwardEnv()
    """Variables of the submitter that the world is given."""

    state: StateTable | None = None
    """Where the state lies. None for a stateless world, which has no snapshot, restore and reset."""

    @property
    def is_stateful(self) -> bool:
        """Return whether the world has a state that can be captured and restored."""
        return self.state is not None

    @property
    def has_image(self) -> bool:
        """Return whether it names the sandbox's image or its base. Only an environment in code need not."""
        return self.image is not None or self.base_image is not None

    def task_env(self, task: str, where: Literal["entrypoint", "exec"]) -> dict[str, str]:
        """Return the variables from which processes learn the task; empty if `where` is not `inject_into`.

        Args:
            task: Id of the task.
            where: Environment that is made up: of the whole sandbox (`entrypoint`), or of its commands (`exec`).
        """
        chosen = self.task_selection
        if chosen.mechanism != "env_var" or chosen.inject_into != where:
            return {}
        return {chosen.key: task}


class EnvironmentRef(Model):
    """The environment of a task in a job's frozen spec: a manifest, or an environment in code."""

    manifest: Manifest
    """The manifest; of an environment in code, the attributes of its class, in the same fields."""

    digest: str
    """Sha256, in hex, of the manifest and the files in its `image/`; of an environment in code, of its class's
    attributes and its file. Identifies the world in proofs and caches."""

    source: str
    """Absolute path of the manifest's file on the submitting host; of an environment in code, `code`. For messages."""

    image: ArtifactRef | None = None
    """Packed build context of the manifest's image: the directory `image/` beside the manifest. None if there is none,
    so that the image must be on the host or in a registry."""

    unproven: str | None = None
    """Reason why copies of the world are not proven to answer as the world itself, as a warning. None if they are, or
    if the job does not branch."""

    code: str | None = None
    """`module:Class`, or the name of an entry point of the group `benchflow.environments`; None for a manifest."""

    code_root: str | None = None
    """Directory of the submitting host in which the module is looked for, after the installed ones. None for a
    manifest or an entry point."""


def unproven_warning(environment: EnvironmentRef) -> str:
    """Return the warning of a branch over a world whose copies are not proven to answer as it does."""
    more = f"; see bench env check {environment.source}" if environment.code is None else ""
    return (
        f"{environment.manifest.name}: services start anew in each child, and V(s) is wrong where they hold state in "
        f"memory: {environment.unproven}{more}"
    )


# --- a started world ------------------------------------------------------------------------------------


class ServiceStatus(Model):
    """The status of a declared service."""

    name: str
    """Name of the service, as the manifest has it."""

    port: int
    """TCP port of the service, as the manifest has it."""

    state: Literal["running", "left_out", "ended"]
    """`left_out`: never started, because the sandbox's image lacks it. A service that has put itself into the
    background is `running`."""

    exit_code: int | None = None
    """Exit status of a service that has ended; None otherwise, and where it is unknown."""


class ProbeAnswer(Model):
    """The result of a readiness probe."""

    target: str
    """URL that was probed, or `tcp://localhost:PORT`."""

    healthy: bool
    """Whether the probe has succeeded."""

    answer: str
    """Last response or error, in words, such as `HTTP 200`, `connected` or `connection refused`."""

    seconds: float | None = None
    """Seconds from the start of the wait until it was healthy; None if it never was."""


class Observation(Model):
    """The response of a service to a GET. Two of the same state have the same status and digest."""

    url: str
    """URL as the manifest declares it, or as a verifier's file has it; `state` for the state of an environment in
    code."""

    status: int | None = None
    """HTTP status; None where there was no response. Redirects are not followed."""

    digest: str = ""
    """Sha256 of the body, in hex; of a JSON body, without regard to its spaces and the order of its keys. Empty
    without a response."""

    size: int = 0
    """Bytes of the body."""

    body: str | None = None
    """Body as text; None if it was not requested, or is too long to be shown."""

    error: str = ""
    """Reason why there was no response; empty if there was one."""

    @property
    def is_comparable(self) -> bool:
        """Return whether the response shows a state: a status from 200 to 299, no error and no redirect."""
        return self.status is not None and 200 <= self.status < 300


class ReadyWorld(Model):
    """The status of a world that has become ready."""

    services: tuple[ServiceStatus, ...] = ()
    """All declared services, in the manifest's order. Empty where the framework starts none."""

    probes: tuple[ProbeAnswer, ...] = ()
    """Results of the readiness probes, each healthy."""

    ports: dict[int, str] = {}
    """Addresses, as `host:port`, at which the sandbox's host reaches the declared ports. Empty without a network."""

    seconds: float = 0.0
    """Seconds from the start of the services, or of the sandbox, until all probes had succeeded."""


# --- its state ------------------------------------------------------------------------------------------


class StateFile(Model):
    """One file of a snapshot: a database, or a file that an environment in code has saved under a name."""

    path: str
    """Absolute path of the original in the sandbox; of a file of an environment in code, its name."""

    present: bool
    """Whether the original existed. A restore removes a file that did not."""

    file: str | None = None
    """Path of the copy, relative to the snapshot's directory; None if not present."""

    sha256: str | None = None
    """Sha256 of the copy, in hex; of a database, with the consistency token in it. None if not present."""

    size: int = 0
    """Bytes of the copy; 0 if not present."""

    mode: int = 0o644
    """Permission bits of the original, which the restore of a database sets again."""

    uid: int = 0
    """User id of the original's owner, which the restore of a database sets again."""

    gid: int = 0
    """Group id of the original, which the restore of a database sets again."""


class StateSnapshot(Model):
    """The state of a world at one moment: files in the sandbox, and their record.

    The record that the engine received when the snapshot was taken counts; the files are compared with it by hash.
    """

    name: str
    """Name under which it was taken. To take one of the same name again returns this one."""

    directory: str
    """Absolute path of the snapshot's directory in the sandbox, readable by root alone."""

    fence: str
    """Consistency token: random hex in a table of the copied databases. A restore reads it through the world's paths,
    which proves that processes see the copies, and removes it there. The files of an environment in code lack it."""

    files: tuple[StateFile, ...]
    """The declared databases by path, or the files that an environment in code has saved."""

    taken_at: float
    """Seconds since the epoch, by the sandbox's clock, at which the state was held; of an environment in code, by the
    worker's clock, at which the saving began."""

    seconds: float
    """Seconds that the capture took."""

    @property
    def size(self) -> int:
        """Return the bytes of all copies."""
        return sum(file.size for file in self.files)


class TableState(Model):
    """The rows of a table of a database."""

    name: str
    """Name of the table."""

    columns: tuple[str, ...]
    """Names of the columns, in the table's order."""

    rows: int
    """Number of rows."""

    digest: str
    """Sha256, in hex, of the columns and rows, without regard to the order of the rows."""

    values: list[list[Any]] | None = None
    """Rows as lists of their values, in the order of the primary key; a BLOB is `{"blob": <hex>}`. None if not
    requested, or if there are more rows than the limit of the request."""


class DatabaseState(Model):
    """The tables of a declared database."""

    path: str
    """Absolute path of the database in the sandbox."""

    present: bool
    """Whether the file exists."""

    tables: tuple[TableState, ...] = ()
    """Tables that hold the world's rows, by name: without SQLite's own, the token's, and those behind an index."""


class WorldState(Model):
    """The whole state of a world, as verifiers and rewards read it."""

    databases: tuple[DatabaseState, ...] = ()
    """The declared databases, by path; empty for an environment in code."""

    digest: str
    """Sha256, in hex: equal for equal states."""

    data: Any = None
    """State of an environment in code, as JSON values. None where databases are the state."""

    @classmethod
    def of(cls, data: Any) -> WorldState:
        """Return a state of JSON values, with a digest that does not depend on the order of keys.

        Args:
            data: The state: None, booleans, finite numbers, strings, lists, and objects with string keys.

        Raises:
            StateError: It is not JSON, as NaN is not.
        """
        try:
            text = json.dumps(data, sort_keys=True, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise StateError(
                f"the state is not JSON: {error}", key="query", remedy="return texts, finite numbers, lists and objects"
            ) from error
        return cls(data=data, digest=hashlib.sha256(text.encode()).hexdigest())

    def table(self, path: str, name: str) -> TableState:
        """Return one table of one database.

        Args:
            path: Absolute path of the database in the sandbox.
            name: Name of the table.

        Raises:
            KeyError: There is no such database or table.
        """
        for database in self.databases:
            for table in database.tables:
                if (database.path, table.name) == (path, name):
                    return table
        raise KeyError(f"{path}: {name}")


class RowChange(Model):
    """A row whose primary key is in both states, with other values."""

    before: dict[str, Any]
    """Values in the earlier state, by column."""

    after: dict[str, Any]
    """Values in the later state, by column."""


class TableDiff(Model):
    """The differences of a table. Rows are matched by the primary key; without one, as a whole."""

    name: str
    """Name of the table."""

    change: Literal["added", "removed", "columns"] | None = None
    """Change of the table itself: it is in the later state only, in the earlier only, or its columns have other names,
    types or another key. None if only rows differ."""

    n_added: int = 0
    """Number of rows that are in the later state only."""

    n_removed: int = 0
    """Number of rows that are in the earlier state only."""

    n_changed: int = 0
    """Number of rows with the same primary key and other values."""

    added: list[dict[str, Any]] = []
    """Added rows, values by column; with the two lists below, at most as many as the limit of the request."""

    removed: list[dict[str, Any]] = []
    """Removed rows, values by column."""

    changed: list[RowChange] = []
    """Changed rows."""

    left_out: int = 0
    """Number of rows that count as added, removed or changed and are in no list, because of the limit."""


class DatabaseDiff(Model):
    """The differences of a database."""

    path: str
    """Absolute path of the database in the sandbox."""

    change: Literal["appeared", "disappeared"] | None = None
    """Whether the file is in the later state only, or in the earlier only; None if it is in both."""

    tables: tuple[TableDiff, ...] = ()
    """Tables that differ, by name."""


class StateDiff(Model):
    """The differences between two states of a world."""

    databases: tuple[DatabaseDiff, ...] = ()
    """Databases that differ, by path."""

    @property
    def is_empty(self) -> bool:
        """Return whether the two states are the same."""
        return not self.databases
