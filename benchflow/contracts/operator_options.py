"""Options, mostly of timing, that an operator may set for a worker and for the workflows of a job.

`WorkerOptions` belong to a process: a worker reads them once from its environment. `WorkflowOptions` belong to a job:
`submit` reads them from its own environment and freezes them into the job's specification, so that an open workflow
keeps the options it was started with, whatever the environment of the workers that resume it. The defaults suit
production; tests and operators of slow or fast clusters change them without touching code. docs/operating.md lists the
variables.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import ConfigDict, Field, ValidationError, model_validator

from benchflow.contracts.base import Model
from benchflow.errors import ConfigError

CAPACITY_VARIABLE = "BENCHFLOW_HOST_CAPACITY"
"""Environment variable of `WorkerOptions.capacity`, which is older than the other variables."""


Seconds = Annotated[float, Field(ge=0.001, le=1e8)]
"""A duration that a timer can hold: less than a millisecond would be none at all, which often means no limit."""

SecondsOrNone = Annotated[float, Field(ge=0, le=1e8)]
"""A duration that may be 0."""


_DROPPED = "activity_total_sec"
"""Option of earlier versions: seconds after which an activity was ended, an outage of the server included."""


class _FromEnvironment(Model):
    """Options whose fields are read from environment variables: `<PREFIX><FIELD>` in capitals."""

    PREFIX: ClassVar[str]
    """Prefix of the variables. A variable that has it and names no option is refused."""

    # Neither JSON nor a timeout can hold infinity. The text under each field is its description.
    model_config = ConfigDict(allow_inf_nan=False, use_attribute_docstrings=True)

    @classmethod
    def variables(cls) -> dict[str, str]:
        """Return the environment variable of each field, by field name."""
        return {name: f"{cls.PREFIX}{name.upper()}" for name in cls.model_fields}

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Self:
        """Read the options from environment variables; those that are not set have their defaults.

        Args:
            environ: Environment variables by name.

        Raises:
            ConfigError: A value is out of range, or a variable has the prefix but names no option.
        """
        variables = cls.variables()
        unknown = sorted(name for name in environ if name.startswith(cls.PREFIX) and name not in variables.values())
        if unknown:
            known = ", ".join(sorted(variables.values()))
            raise ConfigError(f"{unknown[0]} is not an option", key=unknown[0], remedy=f"the options are: {known}")
        given = {field: environ[name] for field, name in variables.items() if name in environ}
        try:
            return cls.model_validate(given)
        except ValidationError as error:
            problem = error.errors()[0]
            if not problem["loc"]:
                raise ConfigError(
                    problem["msg"].removeprefix("Value error, "), remedy="change one of the two"
                ) from error
            name = variables[str(problem["loc"][0])]
            raise ConfigError(
                f"{environ[name]!r} is no value of this option: {problem['msg'].lower()}",
                key=name,
                remedy=f"unset {name}, or give another value",
            ) from error


class WorkerOptions(_FromEnvironment):
    """Options of one worker process: its capacity, its polls and heartbeats, its retries and its cleanup."""

    PREFIX: ClassVar[str] = "BENCHFLOW_WORKER_"
    """Prefix of the variables, except that of `capacity`."""

    capacity: int = Field(default_factory=lambda: max(8, 4 * (os.cpu_count() or 1)), ge=1)
    """Sandboxes at a time on this host. Set by `BENCHFLOW_HOST_CAPACITY`; 4 a core, at least 8, by default."""

    max_activities: int = Field(default=500, ge=1, le=100_000)
    """Activities at a time, on each of the worker's two task queues."""

    heartbeat_every_sec: Seconds = 3.0
    """Seconds between heartbeats of an activity. A cancellation is noticed this late at most."""

    dead_worker_poll_sec: Seconds = 5.0
    """Seconds between polls for worker processes of this host that have died and left activities running."""

    reap_every_sec: Seconds = 60.0
    """Seconds between rounds of the reaper."""

    unknown_grace_sec: SecondsOrNone = 3600.0
    """Seconds past its deadline after which a sandbox is removed whose workflow the server does not know."""

    slot_wait_sec: SecondsOrNone = 20.0
    """Seconds that `provision` waits for a free slot on this host before another host may try."""

    sticky_timeout_sec: Seconds = 2.0
    """Seconds that a workflow task waits for the worker that has the workflow in its cache. After a kill -9 of that
    worker, the next workflow task starts this late; the SDK's own default is 10."""

    server_wait_sec: SecondsOrNone = 120.0
    """Seconds that a starting worker waits for a server that does not answer."""

    leftovers_every_sec: Seconds = 86_400.0
    """Seconds between rounds in which a worker removes what jobs that are over have left on its host."""

    leftovers_retain_days: float = Field(default=30.0, ge=0, le=10_000)
    """Days for which unused leftovers stay: results that are in the store, unpacked tasks, the bulk of messages.
    Nothing goes that was written or used since the oldest open workflow began."""

    max_failures: int = Field(default=10, ge=1, le=10_000)
    """Attempts of an activity that may fail with an unknown error, or one that may pass, before that is final: 10 take
    some 40 seconds. Outages and attempts of workers that have died do not count."""

    @classmethod
    def variables(cls) -> dict[str, str]:
        """Return the environment variable of each field, by field name; that of `capacity` has no prefix."""
        return super().variables() | {"capacity": CAPACITY_VARIABLE}


class WorkflowOptions(_FromEnvironment):
    """Timeouts, retries and batch sizes of a job's workflows, frozen when the job is submitted."""

    PREFIX: ClassVar[str] = "BENCHFLOW_WORKFLOW_"
    """Prefix of the variables."""

    heartbeat_timeout_sec: Seconds = 60.0
    """Seconds without a heartbeat after which the server starts an activity again. Longer than a restart of the
    server, or an activity that has finished meanwhile runs a second time."""

    short_limit_sec: Seconds = 120.0
    """Seconds of one attempt of an activity that has no limit of its own: plans and names rollouts, asks for states,
    calls a policy or an aggregate of a user's own, writes a tree, releases checkpoints, tears down."""

    margin_sec: Seconds = 120.0
    """Seconds that an attempt to connect an agent, a turn, a readiness check or a verification may take beyond its own
    limit, which it keeps itself, before the server ends it."""

    replay_margin_sec: Seconds = 420.0
    """As `margin_sec`, where an agent's session is driven through its parent's turns again."""

    checkpoint_limit_sec: Seconds = 900.0
    """Seconds of one attempt to take a checkpoint."""

    restore_limit_sec: Seconds = 300.0
    """Seconds of one attempt to revert the files of steps that a rollout goes back behind."""

    retry_initial_sec: Seconds = 0.2
    """Seconds before an activity's first retry."""

    retry_backoff: float = Field(default=2.0, ge=1, le=1000)
    """Factor by which each further retry of an activity waits longer."""

    retry_max_sec: Seconds = 10.0
    """Most seconds between two retries of an activity."""

    host_start_timeout_sec: Seconds = 300.0
    """Seconds that an activity waits on its host's queue before the server is asked whether that host lives."""

    host_silent_sec: Seconds = 120.0
    """A host whose workers last polled longer ago than this is lost."""

    max_provisions: int = Field(default=3, ge=1, le=1000)
    """Sandboxes that a rollout may have because of lost hosts, the first included."""

    report_total_sec: Seconds = 900.0
    """Seconds of one attempt to write a result or a summary. An outage (a disk is full) is waited for as long as it
    lasts; once the rollout or the job was cancelled, for no more than this."""

    teardown_total_sec: Seconds = 600.0
    """Seconds that a teardown, or a release of checkpoints, is tried for before it is left to the reaper."""

    answer_sec: Seconds = 600.0
    """Seconds that a job waits for its user's answer after equal errors, before it stops."""

    closing_sec: SecondsOrNone = 5.0
    """Seconds that a job waits, at its end, for rollouts that have reported to close."""

    sweep_every_sec: Seconds = 60.0
    """Seconds between sweeps, in which a job asks the server about rollouts that have not reported."""

    sweep_after_sec: SecondsOrNone = 120.0
    """Age in seconds from which an open rollout is swept."""

    sweep_batch: int = Field(default=50, ge=1, le=1000)
    """Rollouts that one activity of a sweep asks about."""

    start_batch: int = Field(default=20, ge=1, le=1000)
    """Rollouts that a job starts in one workflow task."""

    history_limit: int = Field(default=3000, ge=20, le=50_000)
    """Events in its history after which a job continues as new. The server suggests it at 4,096."""

    start_total_sec: SecondsOrNone = 3600.0
    """Seconds that naming and starting rollouts may fail for before they get errored rows. Naming outlasts outages."""

    stuck_attempts: int = Field(default=10, ge=2, le=1_000_000)
    """Failed attempts of one workflow task of a rollout from which a sweep terminates the rollout."""

    stuck_after_sec: SecondsOrNone = 600.0
    """Seconds that a rollout's workflow task must have failed for before a sweep terminates the rollout."""

    max_wait_sec: Seconds = 30 * 86400.0
    """Most seconds that a rollout may wait for slots, people, callbacks and, with its report, the end of an outage
    together, before the server ends it."""

    @model_validator(mode="before")
    @classmethod
    def _drop_total(cls, given: Any) -> Any:
        """Leave out an option of earlier versions, which stored jobs and open workflows still have."""
        return {key: value for key, value in given.items() if key != _DROPPED} if isinstance(given, dict) else given

    @model_validator(mode="after")
    def _check_retries(self) -> Self:
        if self.retry_initial_sec > self.retry_max_sec:
            names = self.variables()
            raise ValueError(
                f"{names['retry_initial_sec']} ({self.retry_initial_sec:g}) is more than "
                f"{names['retry_max_sec']} ({self.retry_max_sec:g})"
            )
        return self
