"""How a rollout is run: what users say and what workers read, in one place."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from benchflow.contracts.base import Model
from benchflow.contracts.branch import BranchConfig
from benchflow.contracts.gateway import EndpointPolicy, ModelLimits, Replay, Sampling
from benchflow.contracts.reward import JudgeSettings, OnTampering
from benchflow.contracts.rollout import Permissions
from benchflow.contracts.task import VerifierMode

Keep = Literal["evidence", "workspace", "checkpoints"]
"""What is kept of a sandbox: what its scorers read; the whole workspace as well; or its checkpoints, to go back to."""


class RunSettings(Model):
    """How every rollout of a job is run. Times in seconds.

    A field that is added here is one of every configuration, and reaches all activities as `spec.run`.
    """

    sandbox_setup_timeout: float = Field(default=120.0, gt=0)
    """Limit of starting a sandbox."""

    deadline_sec: float = Field(default=6 * 3600.0, gt=0)
    """Ends a rollout that nothing else ended."""

    agent_timeout_sec: float | None = Field(default=None, gt=0)
    """Limit of an agent's turn, instead of the task's own."""

    agent_idle_timeout_sec: float = Field(default=600.0, gt=0)
    """How long an agent may be silent."""

    permissions: Permissions = "auto"
    """Who answers what an agent asks of its user."""

    limits: ModelLimits = ModelLimits()
    """Limits of the model's calls."""

    sampling: Sampling = Sampling()
    """What is put into each call of the model."""

    replay: Replay | None = None
    """A record from which the model's calls are answered."""

    endpoint_policy: EndpointPolicy = "fail"
    """Policy for model calls whose endpoint fails: `fail`, or `wait(LIMIT)`."""

    judge: JudgeSettings = JudgeSettings()
    """Which model scores, where a model does."""

    keep: Keep = "evidence"
    """What is kept of each sandbox."""

    keep_max_mb: int = Field(default=256, gt=0)
    """Most MiB of a workspace that is kept."""

    branch: BranchConfig | None = None
    """When a rollout branches, and what comes of it."""

    verify_in: VerifierMode | None = None
    """Where verifiers run: `separate` for a clean room, `shared` for where the agent worked. By default, and with
    `auto`, each task decides; where it says nothing, a clean room is taken if the oracle is known to score the same
    there, and the rollout has changed nothing that would be left behind: a verifier may read more than the workspace
    (a file in /var, a service that must still answer).
    """

    try_clean_room: bool = False
    """Whether an oracle's work is scored in a clean room as well, to learn whether that tells the same."""

    reward_key: str | None = Field(default=None, min_length=1)
    """Key of `reward.json` that is the scalar where there is no `reward`, instead of the one that each task names."""

    reward_lenient: bool = False
    """Whether reward files are read leniently: `BENCHFLOW_REWARD_LENIENT` of whoever submitted the job."""

    on_tampering: OnTampering = "keep"
    """What becomes of the reward of a step where the hardening found tampering: `keep` leaves it as measured; `null`
    withholds it, so that the rollout ends with an error; `zero` makes the scalar 0, or the lower end of a range without
    0, and leaves the named metrics.
    """

    allow_code: list[str] = []
    """Modules whose code tasks may name, to be imported on the host. None but installed entry points by default."""

    require_proven_state: bool = False
    """Refuse to branch over a world unless `bench env check` has proven that copies of it answer alike; fail a copy
    that answers otherwise than its world.
    """

    @field_validator("on_tampering", mode="before")
    @classmethod
    def _read_yaml_null(cls, value: object) -> object:
        """Take the null of a YAML file, where `on_tampering: null` is no text, for the word."""
        return "null" if value is None else value

    def settings(self) -> dict[str, Any]:
        """Return these settings, to be handed on."""
        return {name: getattr(self, name) for name in RunSettings.model_fields}
