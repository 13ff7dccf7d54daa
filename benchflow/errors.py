"""One tree of errors: the base, a group per boundary, and a leaf per kind of failure.

    BenchFlowError: ModelEndpointError, RolloutCancelledError, RolloutDeadlineError, NotStartedError,
          RolloutTerminatedError
        UsageError: ConfigError, JobConflictError, JobNotFoundError, UntrustedJobError, AskUserError, MissingSecretError
            TaskError: UnsupportedFeatureError
        StackError: ServerUnavailableError, ActivityTimeoutError
        StoreError: DiskFullError, StoreAccessError, MissingArtifactError, ResultFileError, CorruptArtifactError
        SandboxError: ProcessNotStartedError, SandboxStartError, UnsafePathError, SandboxSetupError, ImageBuildError,
              ForeignSnapshotError, HostFullError, HostLostError, ReadinessError
            SandboxUnavailableError: DaemonUnavailableError
            SandboxBusyError: SandboxSpaceError
            SandboxLostError: SandboxMemoryError
            ImagePullError: RegistryUnavailableError
        WorldError: ManifestError, ServiceDiedError
            StateError: StatelessError, UnprovenStateError, StateBusyError
        CheckpointError: NotRestorableError, BranchError, CallsUnderWayError
        AgentError: AgentTimeoutError, AgentConnectionError, AgentExitError, AgentOutputError, AgentDivergedError,
              BudgetExhaustedError
            AgentInstallError: AgentSpaceError, AgentDownloadError
            ACPError: SessionNotLoadedError
        GatewayError: GatewayUnavailableError, ReplayDivergedError, UnknownRolloutError
        VerifierError: VerifierTimeoutError, VerifierMemoryError, RewardFileError, RewardMissingError,
              RewardScalarError, TamperingError, RewardFuncError
            JudgeError: JudgeUnavailableError

A class with two bases is drawn under the first one.

Every failure is attributed to one boundary, where it is raised, and recorded once, in the result. An error has what is
needed to fix it: file, key, remedy, the tail of a log. `Failure`, in `benchflow.contracts.rollout_records`, is the same
as data.

Whether an activity that raised an error is retried follows from the error's type alone, by `retryable` and `is_outage`.
docs/errors.md lists every type with both.
"""

from __future__ import annotations

import builtins


class BenchFlowError(Exception):
    """Base class of the errors that BenchFlow raises on purpose."""

    category: str = "internal"
    """Word by which results are grouped, and that `RetryConfig.categories` names."""

    retryable: bool = False
    """Whether a retry may succeed. The activity is retried, `WorkerOptions.max_failures` times at most."""

    is_outage: bool = False
    """Whether the failure lasts until something shared is available again: a server, a daemon, space on a disk. The
    activity is retried for as long as the rollout has time, without that cap.
    """

    def __init__(
        self,
        message: str,
        *,
        file: str | None = None,
        key: str | None = None,
        remedy: str | None = None,
        log_tail: str | None = None,
    ) -> None:
        """Make it: what failed, where (file or URL, key), what the user can do, and the last lines of a log."""
        self.message = message
        self.file = file
        self.key = key
        self.remedy = remedy
        self.log_tail = log_tail
        super().__init__(message)

    def __str__(self) -> str:
        """Return `FILE: KEY: MESSAGE`, then the remedy and the log's tail in lines of their own."""
        where = ": ".join(part for part in (self.file, self.key) if part)
        text = f"{where}: {self.message}" if where else self.message
        if self.remedy:
            text += f"\n  remedy: {self.remedy}"
        if self.log_tail:
            text += "\n" + "\n".join(f"  | {line}" for line in self.log_tail.splitlines())
        return text


def list_categories() -> set[str]:
    """Return the categories of all errors, those of loaded plugins included."""
    found, waiting = set(), [BenchFlowError]
    while waiting:
        kind = waiting.pop()
        found.add(kind.category)
        waiting += kind.__subclasses__()
    return found


# --- what the user wrote -------------------------------------------------------------------------------


class UsageError(BenchFlowError):
    """The request cannot be carried out as it was given."""

    category = "usage"


class ConfigError(UsageError):
    """A configuration file or option is wrong."""


class TaskError(UsageError):
    """A task directory is wrong."""

    category = "task"


class UnsupportedFeatureError(TaskError):
    """The task is valid but asks for something that cannot be done here."""

    category = "unsupported"


class JobConflictError(UsageError):
    """A job of this name exists with another specification."""

    category = "job"


class JobNotFoundError(UsageError):
    """There is no job of this name."""

    category = "job"


class UntrustedJobError(UsageError):
    """A stored job that somebody else may have written is to be acted on."""

    category = "job"


class AskUserError(UsageError):
    """A user's `on_ask_user` raised, or gave what is no answer. The agent still waits for one."""


class MissingSecretError(UsageError):
    """A named environment value is set neither where the job was submitted nor where it runs."""

    category = "secret"


# --- the stack and the store ---------------------------------------------------------------------------


class StackError(BenchFlowError):
    """The Temporal server, the worker or their supervisor."""

    category = "stack"


class ServerUnavailableError(StackError):
    """The Temporal server does not answer."""

    retryable = True
    is_outage = True


class ActivityTimeoutError(StackError):
    """An activity took longer than it may, or no worker took it up or sent heartbeats."""

    retryable = True


class StoreError(BenchFlowError):
    """The artifact store or the results directory."""

    category = "store"
    retryable = True
    is_outage = True


class DiskFullError(StoreError):
    """No space is left where results or state are written."""


class StoreAccessError(StoreError):
    """A file of the store, the results or the state may not be written or read as it was to be."""

    retryable = False
    is_outage = False


class MissingArtifactError(StoreError):
    """A blob or directory that others have written is not where this host looks for it."""

    is_outage = False


class ResultFileError(StoreError):
    """A file of a job's results was changed and cannot be read."""

    retryable = False
    is_outage = False


class CorruptArtifactError(StoreError):
    """A stored blob does not have the digest it is named by."""

    retryable = False
    is_outage = False


# --- the planes ----------------------------------------------------------------------------------------


class SandboxError(BenchFlowError):
    """The sandbox plane."""

    category = "sandbox"


class SandboxUnavailableError(SandboxError):
    """No sandbox can be started here: no permission, no such provider, a machine that lacks what one needs."""


class DaemonUnavailableError(SandboxUnavailableError):
    """The provider's daemon does not answer: it restarts, or hangs."""

    retryable = True
    is_outage = True


class SandboxBusyError(SandboxError):
    """The host or the provider's daemon could not do what was asked at this moment: short of memory or ports."""

    retryable = True


class ProcessNotStartedError(SandboxError):
    """A command did not start: its directory is not there, or the driver was given something that it can't start."""


class SandboxSpaceError(SandboxBusyError):
    """No space is left where the provider's daemon keeps images and sandboxes."""

    is_outage = True


class SandboxStartError(SandboxError):
    """A sandbox did not come up."""


class SandboxLostError(SandboxError):
    """A sandbox that was running is gone."""

    category = "sandbox_lost"


class SandboxMemoryError(SandboxLostError):
    """The kernel killed the agent, or the sandbox, for want of memory."""

    category = "sandbox_memory"


class UnsafePathError(SandboxError):
    """Where a file of a sandbox is to be opened on the host lies a link, a pipe or a device, or too much."""


class SandboxSetupError(SandboxError):
    """A setup command of the task, or the preparation of the sandbox for the agent, failed or took too long."""

    category = "sandbox_setup"


class ImageBuildError(SandboxError):
    """An image could not be built."""

    category = "image_build"


class ImagePullError(SandboxError):
    """An image is neither here nor to be had."""

    category = "image_pull"


class RegistryUnavailableError(ImagePullError):
    """The registry of an image does not answer, or turns requests away for now."""

    retryable = True


class ForeignSnapshotError(SandboxError):
    """A packed snapshot is of another kind of host than this one."""

    category = "checkpoint"


class HostFullError(SandboxError):
    """This host has no capacity for another sandbox now."""

    category = "capacity"
    retryable = True
    is_outage = True


class HostLostError(SandboxError):
    """The host that ran a sandbox does not answer any more."""

    category = "sandbox_lost"


class ReadinessError(SandboxError):
    """The world did not become healthy."""

    category = "readiness"


class WorldError(BenchFlowError):
    """The environment plane."""

    category = "environment"


class ManifestError(WorldError, UsageError):
    """An environment manifest is wrong, or does not fit the task."""

    category = "manifest"


class ServiceDiedError(WorldError):
    """A part of the world ended while it was needed."""

    category = "service"


class StateError(WorldError):
    """The world's state could not be captured or put back."""

    category = "state"


class StatelessError(StateError, builtins.RuntimeError):
    """The environment declares no state, so that there is nothing to snapshot, restore or query."""


class UnprovenStateError(StateError, UsageError):
    """A copy of the world does not, or not provably, answer as the world itself, and the job requires that."""

    category = "state"


class StateBusyError(StateError):
    """A process holds a database of the world."""

    retryable = True


class CheckpointError(BenchFlowError):
    """A state of the world could not be kept, or not be gone back to."""

    category = "checkpoint"


class NotRestorableError(CheckpointError, UsageError):
    """A rollout cannot go back to this node now: nothing is kept of it, or the rollout is over."""

    category = "checkpoint"


class BranchError(CheckpointError):
    """None of a node's children has a return. Results have the category of the first child's error instead, if any."""


class CallsUnderWayError(CheckpointError):
    """A call of the agent's model is still under way: its endpoint, or the disk of its record, may be in trouble."""

    retryable = True


class AgentError(BenchFlowError):
    """The agent plane."""

    category = "agent"


class AgentInstallError(AgentError):
    """The agent's programs could not be made ready: no such version, or a host that cannot build them."""

    category = "agent_install"


class AgentSpaceError(AgentInstallError):
    """No space is left for the agent's programs."""

    retryable = True
    is_outage = True


class AgentDownloadError(AgentInstallError):
    """A package of the agent could not be fetched."""

    retryable = True
    is_outage = True


class ACPError(AgentError):
    """The agent broke the Agent Client Protocol."""

    category = "agent_protocol"


class SessionNotLoadedError(ACPError):
    """The agent does not go on with a session of its own, in a copy of its world."""


class AgentTimeoutError(AgentError, builtins.TimeoutError):
    """The agent did not finish in time."""

    category = "agent_timeout"


class AgentConnectionError(AgentError, builtins.ConnectionError):
    """The connection to the agent was lost."""

    category = "agent_connection"
    retryable = True


class AgentExitError(AgentError):
    """The agent ended with an error."""

    category = "agent_exit"


class AgentOutputError(AgentError):
    """The agent sent, or made its host keep, more than one agent may."""

    category = "agent_output"


class AgentDivergedError(AgentError):
    """A Python agent did otherwise when its turn was taken again after a crash."""


class BudgetExhaustedError(AgentError):
    """The agent's model calls have used up what the rollout may use."""

    category = "budget_exhausted"


class ModelEndpointError(BenchFlowError):
    """The endpoint of the agent's model served no call, or failed for good before the agent was done."""

    category = "model_endpoint"


class GatewayError(BenchFlowError):
    """The model gateway."""

    category = "gateway"


class GatewayUnavailableError(GatewayError):
    """The gateway of this host does not answer, or is of an older version and still in use."""

    retryable = True
    is_outage = True


class ReplayDivergedError(GatewayError):
    """A strict replay's agent asked its model something that is not in the record."""

    category = "replay_diverged"


class UnknownRolloutError(GatewayError):
    """The gateway was not told of this rollout, or has forgotten it."""


class VerifierError(BenchFlowError):
    """The reward plane."""

    category = "verifier"


class VerifierTimeoutError(VerifierError, builtins.TimeoutError):
    """The verifier did not finish in time."""

    category = "verifier_timeout"


class VerifierMemoryError(VerifierError):
    """The kernel killed the verifier, or a program that prepares for it, for want of memory."""

    category = "verifier_memory"


class RewardFileError(VerifierError):
    """A reward file does not say a reward."""

    category = "reward_file"


class RewardMissingError(VerifierError):
    """The verifier ended without writing a reward."""

    category = "reward_missing"


class RewardScalarError(VerifierError):
    """The verifier reported several keys and no scalar, where one is needed."""

    category = "reward_scalar"


class TamperingError(VerifierError):
    """The hardening found tampering, and the job withholds the reward for that."""

    category = "reward_tampering"


class JudgeError(VerifierError):
    """A model that was to judge gave no usable answer, or could not be asked."""

    category = "verifier_judge"


class JudgeUnavailableError(JudgeError):
    """The endpoint of a model that was to judge does not answer, or turns requests away for now."""

    retryable = True


class RewardFuncError(VerifierError):
    """A reward function failed."""

    category = "reward_func"


class RolloutCancelledError(BenchFlowError):
    """The rollout was cancelled."""

    category = "cancelled"


class RolloutDeadlineError(BenchFlowError, builtins.TimeoutError):
    """The rollout reached its deadline."""

    category = "deadline"


class NotStartedError(BenchFlowError):
    """The job had stopped before the rollout's turn: too many others had failed alike, and none was scored."""

    category = "not_started"


class RolloutTerminatedError(BenchFlowError):
    """The rollout's workflow ended without a result (terminated, or its history was lost)."""

    category = "terminated"
    retryable = True
