"""Models of a task directory, the same for both layouts: native (task.md) and split (task.toml with instruction.md).

Field names and defaults are those of the published task formats (schema 1.0 to 1.4), in the spelling of task.md. Most
fields either have an effect or are refused by name (`benchflow.tasks.support`); the rest is descriptive, and its
docstrings say so. Paths are POSIX and relative to the task directory, unless a field says otherwise.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from benchflow.contracts.base import Model
from benchflow.contracts.reward import JudgeRubric, RewardTable
from benchflow.contracts.sandbox import NetworkMode
from benchflow.contracts.sandbox_config import Healthcheck, SandboxConfig
from benchflow.contracts.verifier import VerifierConfig, VerifierDocument


class Author(Model):
    """An author of a task: an entry of `task.authors`. A plain string in the file is a name."""

    name: str
    """Name of the person or organization."""

    email: str | None = None
    """Email address; None if not given."""


class TaskInfo(Model):
    """The `task` table: descriptive data about a task.

    Nothing in it changes how the task runs. A `name` without an organization is a warning.
    """

    name: str | None = None
    """Published name, `org/name`; None if not given. Rollouts and results use the name of the directory instead."""

    description: str = ""
    """Short description of the task, for people."""

    version: str = ""
    """The task's own version. Numbers are accepted and become text."""

    authors: list[Author] = []
    """Authors, each with a name."""

    keywords: list[str] = []
    """Keywords for a search of tasks."""


class AgentConfig(Model):
    """The `agent` table of a task or of one of its steps.

    A step inherits the keys that it leaves unset from the task's own table.
    """

    timeout_sec: float | None = Field(default=None, gt=0)
    """Seconds that one turn of the agent may take; None for no limit but the deadline of the rollout. The job's agent
    timeout replaces it.
    """

    user: str | int | None = None
    """User name or uid that the agent acts as; None for the default of the agent's registry record. In the split layout
    the oracle and a step's `setup.sh` run as this user, too; a step's own value applies to these alone.
    """

    network_mode: NetworkMode | None = None
    """Network of the agent; None for that of the sandbox. A mode other than that of the sandbox is refused."""

    allowed_hosts: list[str] = []
    """Hosts that network mode `allowlist` lets through; an error with any other mode. Never applied, because the mode
    itself is refused.
    """

    prompt_prefix: str | None = None
    """Text put before each instruction, separated by an empty line; None for no prefix."""


class OracleConfig(Model):
    """The `solution` (task.toml) or `oracle` (task.md) table: how the task's reference solution `solve.sh` runs."""

    env: dict[str, str] = {}
    """Environment variables of `solve.sh`, added to those of the sandbox. Values may name host variables, as there."""

    timeout_sec: float | None = Field(default=None, gt=0)
    """Seconds that `solve.sh` may run in a step; None for `agent.timeout_sec`. The job's agent timeout replaces it."""


class ArtifactSpec(Model):
    """A path in the sandbox whose content is an artifact: an entry of `artifacts`. A plain string is its source.

    It is copied to the results when the rollout ends, and to the clean room of a verifier. A missing path is a warning.
    """

    source: str
    """Path of a file or directory (alias `path`), absolute or relative to the workspace."""

    destination: str | None = None
    """Path relative to `artifacts/` of the results, or of `steps/<name>/` there for an artifact of a step. None for the
    absolute path of the source, without its leading slash.
    """

    exclude: list[str] = []
    """Shell patterns of paths to leave out. They match a relative path, any name in it, or a directory above it."""

    service: str = "main"
    """Container that has the path. Any other than `main` is refused."""


class StepConfig(Model):
    """One entry of `[[steps]]`: a turn with its own instruction, scored after it.

    The files of the step are in `steps/<name>/`.
    """

    name: str
    """Name of the step and of its directory: at most 200 bytes of printable text without slashes, not beginning with a
    dot, unique in the task.
    """

    agent: AgentConfig = AgentConfig()
    """Configuration of the agent's turn."""

    verifier: VerifierConfig = VerifierConfig()
    """Configuration of the verifier that runs after the turn."""

    min_reward: float | dict[str, float] | None = None
    """Reward below which the remaining steps are skipped: a number for `reward`, or a minimum for each key of the
    reward, of which a missing one fails. None to continue in any case.
    """

    healthcheck: Healthcheck | None = None
    """Check that must succeed after the step's setup and before its turn; None for no check."""

    artifacts: list[ArtifactSpec] = []
    """Artifacts of the step, beside those of the task. They are copied to the results if the step was run."""


class RoleSpec(Model):
    """A role of a task with scenes: `agents.roles.<name>` in task.md.

    A role that takes a turn may set nothing but its agent. Any other key is refused, naming it; set it by the options
    of the job.
    """

    agent: str
    """Registry name of the agent that acts as the role. The job must run this agent."""

    model: str | None = None
    """LLM of the role; None for that of the job."""

    reasoning_effort: str | None = None
    """Reasoning effort of the LLM; None for that of the job."""

    env: dict[str, str] = {}
    """Environment variables of the role's agent."""

    timeout_sec: float | None = None
    """Seconds that a turn of the role may take; None for the limit of the task."""

    idle_timeout_sec: float | None = None
    """Seconds that the agent may be silent in a turn; None for the limit of the job."""

    skills_dir: str | None = None
    """Directory of skills for the role; None for none."""


class TurnSpec(Model):
    """A turn of a scene: an entry of `scenes[].turns` in task.md. A plain string is a role's name."""

    role: str
    """Name of the role that acts, one of the scene's roles."""

    prompt: str | None = None
    """Prompt of the turn; None for that of the scene, else of the role, else the task's instruction."""


class SceneSpec(Model):
    """A scene of task.md: an entry of `scenes`, with the values that may be left out filled in.

    Each turn becomes a step, and all turns of a scene share one agent session.
    """

    name: str
    """Name of the scene, unique in the task. Default: `scene-<i>`, counted from 1."""

    roles: list[str]
    """Names of the roles in the scene, all of them declared. Default: those that the turns name, else the only one
    declared.
    """

    turns: list[TurnSpec]
    """Turns of the scene, in order. Default: one for each role."""

    skills_dir: str | None = None
    """Directory of skills for the scene. Refused if set."""


class UserSpec(Model):
    """A simulated user: the `user` table of task.md.

    A task that declares one is refused, because nothing simulates it yet.
    """

    model: str | None = None
    """LLM that plays the user; `scripted` for a script that reveals facts when asked. None if not given."""

    stop_rule: str | None = None
    """Rule that ends the conversation. It must end in `-<n>-rounds`, the most rounds; None for no rule."""

    private_facts: dict[str, str] = {}
    """Facts that the user reveals only when asked, by their names."""

    persona: str | None = None
    """Description of the user: this key, the section `## user-persona`, or the file `prompts/user-persona.md`. None
    without any of them.
    """


class StepFiles(Model):
    """The files in `steps/<name>/`, with directories relative to the task directory."""

    instruction: str
    """Text of the step's `instruction.md`, the prompt of its turn."""

    verifier_dir: str | None = None
    """Directory of the step's verifier, copied over the task's own; None for the task's alone."""

    verifier_build: str | None = None
    """Path of the file that builds the image of the step's clean room, as `Task.verifier_build`; None without one."""

    oracle_dir: str | None = None
    """Directory of the step's oracle; None for that of the task."""

    workdir_dir: str | None = None
    """Directory whose content is copied into the workspace before the turn, where its `setup.sh` then runs; None
    without one.
    """


class Task(Model):
    """A task directory, read and validated, without the bulk of its files.

    A field that task.toml and task.md name differently has the name of task.md.
    """

    name: str
    """Name of the task directory, by which rollouts and results call the task. Not `info.name`."""

    layout: Literal["native", "split"]
    """Layout of the definition: `native` is task.md, `split` is task.toml with instruction.md."""

    config_file: str
    """Name of the file that has the configuration, `task.md` or `task.toml`. Errors name it."""

    schema_version: str | None = None
    """Version of the task format (alias `version`); None if not given. Versions 1.0 to 1.4 are known; any other is an
    error in the native layout, a warning in the split one.
    """

    info: TaskInfo = TaskInfo()
    """The `task` table: name, description and authors."""

    metadata: dict[str, Any] = {}
    """The `metadata` table: free data of the author. Nothing reads it."""

    source: str | None = None
    """Origin of the task, in words of the author; None if not given. Nothing reads it."""

    agent: AgentConfig = AgentConfig()
    """Configuration of the agent's turns, the default of all steps."""

    verifier: VerifierConfig = VerifierConfig()
    """Configuration of the verifier, the default of all steps."""

    sandbox: SandboxConfig = SandboxConfig()
    """Configuration of the sandbox, `environment` in task.toml. Variables and the working directory of a compose file
    are merged into it.
    """

    oracle: OracleConfig = OracleConfig()
    """Configuration of the oracle, `solution` in task.toml."""

    artifacts: list[ArtifactSpec] = []
    """Artifacts copied out of the sandbox. The content of `/logs/artifacts` is always copied."""

    steps: list[StepConfig] = []
    """Steps of the task in order, each with the inherited configuration filled in; empty for a task with one turn or
    scenes.
    """

    multi_step_reward_strategy: Literal["mean", "final"] = "mean"
    """Rule that combines the rewards of the steps: `mean` averages each key over the scored steps, `final` takes the
    last scored step.
    """

    reward: RewardTable | None = None
    """The `reward` table: reward functions beside the verifier, with the rubrics that they name read in. None for the
    verifier alone.
    """

    verifier_document: VerifierDocument | None = None
    """Content of `verifier.md`; None without one, and always with the directory `tests`."""

    instruction: str
    """Base prompt: `instruction.md`, or the body of task.md (its section `## prompt`). It may be empty if the task has
    steps.
    """

    step_files: dict[str, StepFiles] = {}
    """Files of each step, by its name."""

    verifier_dir: str | None = None
    """Directory of the verifier, `verifier` before `tests`; None if only steps have one."""

    verifier_build: str | None = None
    """Path of a compose file, else a Dockerfile, in the directory of the verifier; None without one. A Dockerfile
    builds the image of a clean room; a compose file is refused with `sandbox_mode` `separate`.
    """

    oracle_dir: str | None = None
    """Directory of the oracle, `oracle` before `solution`; None without one."""

    environment_dir: str | None = None
    """Build context of the image, `environment`; None without one, which a manifest with an image allows."""

    dockerfile: str | None = None
    """Path of the Dockerfile, `environment/Dockerfile`; None without one."""

    compose_file: str | None = None
    """Path of the compose file; None without one. Only `environment/docker-compose.yaml` can be carried out."""

    compose_refused: str | None = None
    """First key of the compose file, or of `sandbox.env`, that needs Compose, so that the task is refused; None without
    one.
    """

    context_root: str | None = None
    """Absolute path on this host of the build context; None for `environment/`. The file has it relative to the task
    directory, and the job may override it.
    """

    roles: dict[str, RoleSpec] = {}
    """Declared roles by name: `agents.roles` in task.md."""

    role_prompts: dict[str, str] = {}
    """Prompts of roles by name: `## role:<name>` sections; a file `prompts/role.<name>.md` takes precedence."""

    rubrics: dict[str, JudgeRubric] = {}
    """Rubrics of the LLM judges and reward kits, by their paths as the task writes them."""

    scenes: list[SceneSpec] = []
    """Scenes in order, each turn of which becomes a step. Empty for a task without scenes, and in the split layout."""

    scene_prompts: dict[str, str] = {}
    """Prompts of scenes by name: `## scene:<name>` sections; `prompts/scene.<name>.md` takes precedence."""

    user: UserSpec | None = None
    """Simulated user; None without one. A task with one is refused."""

    extension: dict[str, Any] = {}
    """The `benchflow` table of task.md. `environment.manifest`, `verifier.path` and `oracle.path` have an effect; other
    keys are refused or unused.
    """

    compat_extra: dict[str, Any] = {}
    """Keys of the file that have no field here, with their values, by dotted path. They have no effect; one that would
    change the task's meaning is refused.
    """

    def oracle_dir_of(self, step: str | None) -> str | None:
        """Return the directory of a step's oracle: the step's own, else that of the task.

        Args:
            step: Name of the step; None for a task without steps.
        """
        own = self.step_files[step].oracle_dir if step else None
        return own or self.oracle_dir

    def starts_in_root(self, has_workdir: bool) -> bool:
        """Return whether the task's scripts start in `/` instead of the workspace.

        Published scripts of the split layout expect it where nothing names a workspace.

        Args:
            has_workdir: Whether the task or its image names a workspace.
        """
        return self.layout == "split" and not has_workdir

    def acts_as(self, step: str | None, image_user: str | None) -> str | int | None:
        """Return the user that the oracle and a step's `setup.sh` run as; None for root.

        In the split layout it is the user of the agent's table, else that of the image, as published tasks expect.

        Args:
            step: Name of the step; None for a task without steps.
            image_user: User that the image names; None for root.
        """
        if self.layout != "split":
            return None
        own = next((one.agent.user for one in self.steps if one.name == step), None)
        return next((user for user in (own, self.agent.user) if user is not None), image_user)

    def verifies_as(self, image_user: str | None) -> str | None:
        """Return the default user of a verifier, whose table names none; None for root.

        The caller takes root instead if this is the user that the agent acts as.

        Args:
            image_user: User that the image names; None for root. It counts in the split layout only.
        """
        return image_user if self.layout == "split" else None

    @property
    def n_turns(self) -> int:
        """Return the number of turns that the agents of the task have."""
        return len(self.steps) or sum(len(scene.turns) for scene in self.scenes) or 1

    def verifier_build_of(self, step: str | None) -> str | None:
        """Return the path of the file that builds the image of a step's clean room; None for the task's own image.

        It lies in the directory of the step's verifier, else in that of the task's.

        Args:
            step: Name of the step; None for a task without steps.
        """
        own = self.step_files[step].verifier_build if step in self.step_files else None
        return own or self.verifier_build
