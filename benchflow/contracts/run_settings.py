"""Settings of rollouts: the fields that configurations of users and the specs that workers read have in common."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from benchflow.contracts.base import Model
from benchflow.contracts.branch import BranchConfig
from benchflow.contracts.gateway import EndpointPolicy, ModelLimits, ReplaySettings, Sampling
from benchflow.contracts.reward import JudgeSettings, OnTampering
from benchflow.contracts.rollout_records import Permissions
from benchflow.contracts.verifier import VerifierMode

Keep = Literal["evidence", "workspace", "checkpoints"]
"""Parts of a sandbox that are retained after its rollout, each with those before it.

`evidence`: the files that scorers read. `workspace`: the workspace, in which verifiers can be run again. `checkpoints`:
the root's checkpoints, to which a rollout that has ended can be rolled back.
"""


class RunSettings(Model):
    """Settings that all rollouts of a job have in common.

    A field that is added here is one of every configuration, and reaches all activities as `spec.run`.
    """

    sandbox_setup_timeout: float = Field(default=120.0, gt=0)
    """Seconds that the start of a sandbox may take, and as many to prepare it for the agent."""

    deadline_sec: float = Field(default=6 * 3600.0, gt=0)
    """Seconds of work after which a rollout is ended. Waiting for a slot, a user or children does not count."""

    agent_timeout_sec: float | None = Field(default=None, gt=0)
    """Seconds that an agent's turn may take; None: the task's own limit, else `deadline_sec`, the most in any case."""

    agent_idle_timeout_sec: float = Field(default=600.0, gt=0)
    """Seconds that an agent may be silent in a turn before the turn is ended."""

    permissions: Permissions = "auto"
    """Answers to the agent's questions to its user: `auto` allows, `deny` rejects, `ask` waits for a user, who answers
    with `bench rollout answer`.
    """

    limits: ModelLimits = ModelLimits()
    """Limits of the model calls, tokens and cost of a rollout."""

    sampling: Sampling = Sampling()
    """Sampling parameters that the gateway puts into each model call."""

    replay: ReplaySettings | None = None
    """Record from which the gateway answers model calls; None: the endpoint answers all."""

    endpoint_policy: EndpointPolicy = "fail"
    """Policy for model calls whose endpoint fails: `fail` retries for some minutes, `wait(LIMIT)` for the limit, as in
    `wait(2h)`.
    """

    judge: JudgeSettings = JudgeSettings()
    """Settings of the model that judges, where one scores."""

    keep: Keep = "evidence"
    """Parts of each sandbox that are retained after its rollout: `evidence`, the files that scorers read; `workspace`,
    these and the workspace, to score it again; `checkpoints`, all that and the root's checkpoints, to roll it back
    after its end.
    """

    keep_max_mb: int = Field(default=256, ge=1)
    """Most MiB of a step's packed workspace, and as many of the files that its scorers read. A workspace or file that
    is larger is not retained.
    """

    branch: BranchConfig | None = None
    """Configuration of how rollouts branch; None: they do not."""

    verify_in: VerifierMode | None = None
    """Place where verifiers run: `separate` is a clean room, `shared` the sandbox in which the agent worked. By
    default, and with `auto`, each task decides. One that does not gets a clean room if an oracle was seen to score the
    same there, and the rollout left no process or change that a clean room would lack: verifiers may read more than the
    workspace.
    """

    try_clean_room: bool = False
    """Whether an oracle's work is scored in a clean room as well, to learn whether the score is the same there."""

    reward_key: str | None = Field(default=None, min_length=1)
    """Key of `reward.json` that is the scalar reward if it has no key `reward`; None: the key that each task names."""

    reward_lenient: bool = False
    """Whether reward files are read leniently: other names of the reward are accepted, and entries that are no metrics
    are ignored. `BENCHFLOW_REWARD_LENIENT=1` in the submitting environment sets it.
    """

    on_tampering: OnTampering = "keep"
    """Rule for the reward of a step where the hardening found tampering: `keep` leaves it as measured; `null` withholds
    it, so that the rollout ends with an error; `zero` lowers the scalar to 0, or to the lower end of a range without 0,
    and leaves the named metrics.
    """

    allow_code: list[str] = []
    """Modules of the host whose code tasks may name for import. Installed entry points need no permission."""

    require_proven_state: bool = False
    """Whether a world must be proven, by `bench env check`, to have copies that give the same responses. If so, a job
    that branches over one that is not is refused, and a copy with other responses fails.
    """

    @field_validator("on_tampering", mode="before")
    @classmethod
    def _read_yaml_null(cls, value: object) -> object:
        """Return `"null"` for None: YAML reads `on_tampering: null` as None."""
        return "null" if value is None else value
