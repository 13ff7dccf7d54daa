"""Models of the keys of task.toml and task.md.

Most tables are models of `benchflow.contracts`; the ones that surround them in a file are here.
"""

from __future__ import annotations

from typing import Any, Literal

from benchflow.contracts.base import Model
from benchflow.contracts.reward import RewardTable
from benchflow.contracts.sandbox_config import SandboxConfig
from benchflow.contracts.task import (
    AgentConfig,
    ArtifactSpec,
    OracleConfig,
    RoleSpec,
    StepConfig,
    TaskInfo,
    TurnSpec,
    UserSpec,
)
from benchflow.contracts.verifier import VerifierConfig


class TaskTables(Model):
    """The root of task.toml, under the names that task.md uses (`sandbox`, `oracle`)."""

    schema_version: str | None = None
    task: TaskInfo = TaskInfo()
    metadata: dict[str, Any] = {}
    agent: AgentConfig = AgentConfig()
    verifier: VerifierConfig = VerifierConfig()
    sandbox: SandboxConfig = SandboxConfig()
    oracle: OracleConfig = OracleConfig()
    source: str | None = None
    artifacts: list[ArtifactSpec] = []
    steps: list[StepConfig] = []
    multi_step_reward_strategy: Literal["mean", "final"] = "mean"
    reward: RewardTable | None = None
    context_root: str | None = None


class AgentsTable(Model):
    """The table `agents` of task.md."""

    roles: dict[str, RoleSpec] = {}


class SceneTable(Model):
    """A scene as written in task.md; `complete_scenes` fills in what is left out."""

    name: str | None = None
    roles: list[str] | None = None
    turns: list[TurnSpec] = []
    skills_dir: str | None = None


class DocumentTables(TaskTables):
    """The frontmatter of task.md."""

    agents: AgentsTable = AgentsTable()
    scenes: list[SceneTable] = []
    user: UserSpec | None = None
    benchflow: dict[str, Any] = {}
