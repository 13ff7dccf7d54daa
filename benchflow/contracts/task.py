"""The task: what a directory on disk means, whichever of its two layouts it uses.

Field names and defaults are those of the published task formats (schema 1.0 to 1.4). A field is here
because something carries it out or because something refuses it by name; see `benchflow.tasks.support`.
Paths are POSIX, relative to the task directory.
"""

from __future__ import annotations

import posixpath
from typing import Any, Literal

from pydantic import Field

from benchflow.contracts.base import Model
from benchflow.contracts.reward import AggregatePolicy, JudgeRubric, RewardTable

NetworkMode = Literal["public", "no-network", "allowlist"]

VerifierMode = Literal["auto", "shared", "separate"]
"""Where a verifier runs: where the agent worked, or in a sandbox of its own."""


class Author(Model):
    name: str
    email: str | None = None


class TaskInfo(Model):
    """The `task` table. name: `org/name`."""

    name: str | None = None
    description: str = ""
    version: str = ""
    authors: list[Author] = []
    keywords: list[str] = []


class AgentConfig(Model):
    """The `agent` table. timeout_sec: seconds for one turn of the agent; unset means no cap of the task's."""

    timeout_sec: float | None = Field(default=None, gt=0)
    user: str | int | None = None
    network_mode: NetworkMode | None = None
    allowed_hosts: list[str] = []
    prompt_prefix: str | None = None


class Healthcheck(Model):
    """A command that exits 0 once the world is healthy. Times are seconds; the meaning is Docker's."""

    command: str
    interval_sec: float = Field(default=5.0, ge=0)
    timeout_sec: float = Field(default=30.0, gt=0)
    start_period_sec: float = Field(default=0.0, ge=0)
    start_interval_sec: float = Field(default=5.0, ge=0)
    retries: int = Field(default=3, ge=1)


class McpServer(Model):
    name: str
    transport: Literal["sse", "streamable-http", "stdio"] = "sse"
    url: str | None = None
    command: str | None = None
    args: list[str] = []
    env: dict[str, str] = {}
    headers: dict[str, str] = {}


class SetupCommand(Model):
    """A command that prepares the sandbox once, as root unless `user` says otherwise, before the agent."""

    command: str
    timeout_sec: float = Field(default=600.0, gt=0)
    cwd: str | None = None
    env: dict[str, str] = {}
    user: str | int | None = None


class SandboxConfig(Model):
    """The `environment` (task.toml) or `sandbox` (task.md) table: what the task asks of its sandbox.

    cpus: cores. memory_mb, storage_mb: MiB. env: literal values, or `${VAR}` and `${VAR:-default}` from the
    environment of whoever submits the job.
    """

    docker_image: str | None = None
    build_timeout_sec: float = Field(default=600.0, gt=0)
    os: str = "linux"
    cpus: float = Field(default=1, gt=0)
    memory_mb: int = Field(default=2048, gt=0)
    storage_mb: int = Field(default=10240, gt=0)
    gpus: int = Field(default=0, ge=0)
    gpu_types: list[str] | None = None
    env: dict[str, str] = {}
    workdir: str | None = None
    network_mode: NetworkMode = "public"
    allowed_hosts: list[str] = []
    mcp_servers: list[McpServer] = []
    skills_dir: str | None = None
    healthcheck: Healthcheck | None = None
    setup_commands: list[SetupCommand] = []

    @property
    def works_in_root(self) -> bool:
        """Return whether `/` is named as the working directory."""
        return self.workdir is not None and posixpath.normpath(f"/{self.workdir}") in ("/", "//")


class JudgeConfig(Model):
    model: str | None = None
    rubric_path: str = "tests/rubric.toml"
    input_dir: str = "/app"
    input_type: str = "deliverables"
    context: str = ""


class HardeningConfig(Model):
    """What is done between the agent and the verifier; an item that is false is left out, and the result says so.

    kill_processes: what the agent left running ends. fresh_logs: the verifier's directories are made anew.
    restore_build_files: those there were before the agent are put back, and so are the files that shells, cron, git and
    pip read by themselves. remove_escaping_links: new links that lead out of the workspace. cleanup_conftests: pytest's
    `conftest.py`. cleanup_python_hooks: what an interpreter runs or takes first by itself. own_workspace: it becomes
    the verifier's. pin_environment: the variables that the verifier runs with. verify_tools: the shell, the programs
    and the libraries that it stands on are as they were.
    """

    kill_processes: bool = True
    fresh_logs: bool = True
    restore_build_files: bool = True
    remove_escaping_links: bool = True
    cleanup_conftests: bool = True
    cleanup_python_hooks: bool = True
    own_workspace: bool = True
    pin_environment: bool = True
    verify_tools: bool = True

    repository_state: bool = True
    """Git shows what was committed, not what replaces it, and overlooks no change."""

    standard_library: bool = True
    """Python takes modules of the standard library from there, also where a new file of the workspace has the name."""


class MemoryConfig(Model):
    expected_skills: list[str] = []


class CollectCommand(Model):
    command: str
    service: str = "main"
    timeout_sec: float = Field(default=60.0, gt=0)
    user: str | int | None = None


class VerifierConfig(Model):
    """The `verifier` table. reward_range: [lo, hi], may only widen [0, 1].

    sandbox_mode: `separate` is a clean room, a fresh sandbox that receives the workspace and the declared artifacts,
    and nothing else; `shared` is where the agent worked; `auto` is a clean room where that is known to score honest
    work the same, because a verifier may read more than what travels. sandbox: what it is made of, in place
    of the whole `sandbox` table of the task; without an image of its own it starts from the task's.
    """

    type: Literal["test-script", "llm-judge"] = "test-script"
    timeout_sec: float = Field(default=600.0, gt=0)
    env: dict[str, str] = {}
    reward_range: tuple[float, float] = (0.0, 1.0)
    user: str | int | None = None
    network_mode: NetworkMode | None = None
    allowed_hosts: list[str] = []
    service: str = "main"
    sandbox_mode: VerifierMode = "auto"
    sandbox: SandboxConfig | None = None
    collect: list[CollectCommand] = []
    pytest_plugins: list[str] = []
    hardening: HardeningConfig = HardeningConfig()
    judge: JudgeConfig | None = None
    memory: MemoryConfig | None = None
    workdir: Literal["workspace", "verifier"] = "workspace"
    """Where `test.sh` starts: in the workspace, or in the directory of the verifier's own files."""

    reward_key: str | None = Field(default=None, min_length=1)
    """Key of `reward.json` that is the scalar, where there is no `reward`."""


class OracleConfig(Model):
    """The `solution` (task.toml) or `oracle` (task.md) table."""

    env: dict[str, str] = {}
    timeout_sec: float | None = Field(default=None, gt=0)


class ArtifactSpec(Model):
    """A path in the sandbox to keep. destination: relative to the rollout's `artifacts/`; default its own path."""

    source: str
    destination: str | None = None
    exclude: list[str] = []
    service: str = "main"


class StepConfig(Model):
    """One of `[[steps]]`; its files are in `steps/<name>/`.

    min_reward: below it the remaining steps are not run; a number for `reward`, or one per metric.
    """

    name: str
    agent: AgentConfig = AgentConfig()
    verifier: VerifierConfig = VerifierConfig()
    min_reward: float | dict[str, float] | None = None
    healthcheck: Healthcheck | None = None
    artifacts: list[ArtifactSpec] = []


class RoleSpec(Model):
    agent: str
    model: str | None = None
    reasoning_effort: str | None = None
    env: dict[str, str] = {}
    timeout_sec: float | None = None
    idle_timeout_sec: float | None = None
    skills_dir: str | None = None


class TurnSpec(Model):
    role: str
    prompt: str | None = None


class SceneSpec(Model):
    name: str
    roles: list[str]
    turns: list[TurnSpec]
    skills_dir: str | None = None


class UserSpec(Model):
    """A simulated user declared in task.md."""

    model: str | None = None
    stop_rule: str | None = None
    private_facts: dict[str, str] = {}
    persona: str | None = None


class VerifierOutputs(Model):
    """Where a verifier writes, as absolute paths in the sandbox."""

    reward_text: str = "/logs/verifier/reward.txt"
    reward_json: str = "/logs/verifier/reward.json"
    details_json: str | None = None
    aggregate_policy: AggregatePolicy | None = None


class VerifierStrategy(Model):
    """One declared way to score. command: for `script`; run in the verifier's directory by a shell.

    rubric, context_file, model, input_dir, context: for `llm-judge`. root, entrypoint, criteria: for
    `reward-kit`. role, isolation, inputs, model: for `agent-judge`. inputs, format: for `ors-episode`.
    """

    type: Literal["script", "llm-judge", "reward-kit", "agent-judge", "ors-episode"]
    command: str | None = None
    rubric: str | None = None
    model: str | None = None
    input_dir: str | None = None
    context: str | None = None
    context_file: str | None = None
    root: str | None = None
    entrypoint: str | None = None
    criteria: str | None = None
    role: str | None = None
    isolation: str | None = None
    inputs: list[str] = []
    format: Literal["json", "jsonl", "auto"] | None = None


class VerifierDocument(Model):
    """`verifier/verifier.md`: the declared strategies and which of them scores by default.

    rubric: the declared weighing of dimensions, as written. role_prompts: the `## role:` sections of the body.
    """

    document_version: str | None = None
    name: str | None = None
    default_strategy: str
    strategies: dict[str, VerifierStrategy]
    outputs: VerifierOutputs = VerifierOutputs()
    rubric: dict[str, Any] = {}
    role_prompts: dict[str, str] = {}

    @property
    def strategy(self) -> VerifierStrategy:
        return self.strategies[self.default_strategy]


class StepFiles(Model):
    """What lies in `steps/<name>/`: the instruction's text, and which directories exist. verifier_build: see `Task`."""

    instruction: str
    verifier_dir: str | None = None
    verifier_build: str | None = None
    oracle_dir: str | None = None
    workdir_dir: str | None = None


class Task(Model):
    """A task, read and checked. Everything but the bulk of its files.

    name: the directory's name. layout: where the definition came from. instruction: the base prompt.
    verifier_dir, oracle_dir, environment_dir: relative to the task directory, None where absent.
    verifier_build: a Dockerfile or compose file in the verifier's directory, which makes a clean room's image.
    config_file: the file that errors about configuration name. rubrics: the rubrics that its judges judge by, by
    their paths.
    """

    name: str
    layout: Literal["native", "split"]
    config_file: str
    schema_version: str | None = None
    info: TaskInfo = TaskInfo()
    metadata: dict[str, Any] = {}
    source: str | None = None
    agent: AgentConfig = AgentConfig()
    verifier: VerifierConfig = VerifierConfig()
    sandbox: SandboxConfig = SandboxConfig()
    oracle: OracleConfig = OracleConfig()
    artifacts: list[ArtifactSpec] = []
    steps: list[StepConfig] = []
    multi_step_reward_strategy: Literal["mean", "final"] = "mean"
    reward: RewardTable | None = None
    verifier_document: VerifierDocument | None = None
    instruction: str
    step_files: dict[str, StepFiles] = {}
    verifier_dir: str | None = None
    verifier_build: str | None = None
    oracle_dir: str | None = None
    environment_dir: str | None = None
    dockerfile: str | None = None
    compose_file: str | None = None
    compose_refused: str | None = None
    """The first key of the compose file that cannot be carried out without Compose; None where there is none."""
    context_root: str | None = None
    roles: dict[str, RoleSpec] = {}
    role_prompts: dict[str, str] = {}
    rubrics: dict[str, JudgeRubric] = {}
    scenes: list[SceneSpec] = []
    scene_prompts: dict[str, str] = {}
    user: UserSpec | None = None
    extension: dict[str, Any] = {}
    compat_extra: dict[str, Any] = {}

    def oracle_dir_of(self, step: str | None) -> str | None:
        """Return the oracle's directory of a step, by its name: its own, else that of the task."""
        own = self.step_files[step].oracle_dir if step else None
        return own or self.oracle_dir

    def starts_in_root(self, has_workdir: bool) -> bool:
        """Return whether its scripts start in `/`, as published ones of the split layout expect of such an image.

        has_workdir: whether the task or its image names a workspace.
        """
        return self.layout == "split" and not has_workdir

    def acts_as(self, step: str | None, image_user: str | None) -> str | int | None:
        """Return who its oracle and a step's `setup.sh` run as, None for root.

        In the split layout, as published ones expect it, whom the agent's table names, else the image's user.
        """
        if self.layout != "split":
            return None
        own = next((one.agent.user for one in self.steps if one.name == step), None)
        return next((user for user in (own, self.agent.user) if user is not None), image_user)

    def verifies_as(self, image_user: str | None) -> str | None:
        """Return who a verifier runs as that its table does not name, unless that is the agent; None for root."""
        return image_user if self.layout == "split" else None

    @property
    def n_turns(self) -> int:
        """How many turns its agents have."""
        return len(self.steps) or sum(len(scene.turns) for scene in self.scenes) or 1

    def verifier_build_of(self, step: str | None) -> str | None:
        """What makes the image of a step's clean room: in its own verifier's directory, or in that of all steps."""
        own = self.step_files[step].verifier_build if step in self.step_files else None
        return own or self.verifier_build
