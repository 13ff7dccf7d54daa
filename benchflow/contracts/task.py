"""Models of a task directory, the same for both layouts: native (task.md) and split (task.toml with instruction.md).

Field names and defaults are those of the published task formats (schema 1.0 to 1.4), in the spelling of task.md. Most
fields either have an effect or are refused by name (`benchflow.tasks.support`); the rest is descriptive, and its
docstrings say so. Paths are POSIX and relative to the task directory, unless a field says otherwise.
"""

from __future__ import annotations

import posixpath
from typing import Any, Literal

from pydantic import Field

from benchflow.contracts.base import Model
from benchflow.contracts.reward import AggregatePolicy, JudgeRubric, RewardTable

NetworkMode = Literal["public", "no-network", "allowlist"]
"""Network of a sandbox: the internet, loopback only, or only listed hosts."""

VerifierMode = Literal["auto", "shared", "separate"]
"""Sandbox in which a verifier runs.

`shared` is the sandbox in which the agent worked. `separate` is a clean room: a fresh sandbox that receives the
workspace, the declared artifacts, the files that scorers read and the recorded state of the world, and nothing else of
the agent's. `auto` is a clean room if that is known to score honest work the same, else the shared sandbox, because a
verifier may read more than a clean room has.
"""


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


class Healthcheck(Model):
    """The `healthcheck` table: a command that exits 0 once the world is healthy.

    Intervals and retries mean the same as in Docker, except that the first try starts at once. The rollout fails with a
    `ReadinessError` if the command does not succeed in time.
    """

    command: str
    """Command for `sh -c`. It runs as root in the workspace."""

    interval_sec: float = Field(default=5.0, ge=0)
    """Seconds between two tries, after the start period."""

    timeout_sec: float = Field(default=30.0, gt=0)
    """Seconds that one try may take. A try that takes longer has failed."""

    start_period_sec: float = Field(default=0.0, ge=0)
    """Seconds from the first try on in which failed tries do not count. 0 for no such period."""

    start_interval_sec: float = Field(default=5.0, ge=0)
    """Seconds between two tries within the start period."""

    retries: int = Field(default=3, ge=1)
    """Number of failed tries after which the world counts as unhealthy. Tries in the start period, and the first one
    after it, do not count.
    """


class McpServer(Model):
    """An MCP server that the agent gets when its ACP session opens: an entry of `sandbox.mcp_servers`.

    In task.toml the list is `environment.mcp_servers`. The agent itself starts or reaches the server. An agent that
    does not support the transport is refused.
    """

    name: str
    """Name that the agent knows the server by."""

    transport: Literal["sse", "streamable-http", "stdio"] = "sse"
    """Transport of the connection: HTTP with server-sent events, streamable HTTP, or stdin and stdout of a process.
    Files may write `http` for `streamable-http`.
    """

    url: str | None = None
    """Address of the server; required for `sse` and `streamable-http`, unused for `stdio`."""

    command: str | None = None
    """Program that the agent starts; required for `stdio`, unused otherwise."""

    args: list[str] = []
    """Arguments of `command`."""

    env: dict[str, str] = {}
    """Environment variables of `command`. Values may name host variables, as in `SandboxConfig.env`."""

    headers: dict[str, str] = {}
    """HTTP headers of `sse` and `streamable-http`. Values may name host variables, as in `SandboxConfig.env`."""


class SetupCommand(Model):
    """A shell command that prepares the sandbox once, before the agent: an entry of `sandbox.setup_commands`.

    In task.toml the list is `environment.setup_commands`. A non-zero exit status fails the rollout with a
    `SetupCommandError`.
    """

    command: str
    """Command for `sh -c`."""

    timeout_sec: float = Field(default=600.0, gt=0)
    """Seconds that the command may take. A command that takes longer has failed."""

    cwd: str | None = None
    """Working directory; None for the workspace."""

    env: dict[str, str] = {}
    """Environment variables added to those of the sandbox. Values may name host variables, as there."""

    user: str | int | None = None
    """User name or uid that the command runs as; None for root."""


class SandboxConfig(Model):
    """The sandbox that a task asks for: the `environment` (task.toml) or `sandbox` (task.md) table.

    The same schema describes the clean room of a verifier (`verifier.environment` or `verifier.sandbox`).
    """

    docker_image: str | None = None
    """Reference of a ready image (alias `image`), used instead of `environment/Dockerfile`; None to build that file.
    Files of an `environment/` without Dockerfile and compose file are copied into the workspace.
    """

    build_timeout_sec: float = Field(default=600.0, gt=0)
    """Seconds that building or pulling the image may take."""

    os: str = "linux"
    """Operating system, in lower case. Any other than `linux` is refused."""

    cpus: float = Field(default=1, gt=0)
    """Number of CPU cores that the sandbox may use at most."""

    memory_mb: int = Field(default=2048, gt=0)
    """MiB of memory that all processes of the sandbox may use together. `memory = "2G"` is the deprecated form."""

    storage_mb: int = Field(default=10240, gt=0)
    """MiB of disk that the sandbox may use at most. A value other than the default is a recorded warning where the
    provider cannot enforce it. `storage = "10G"` is the deprecated form.
    """

    gpus: int = Field(default=0, ge=0)
    """Number of GPUs. More than 0 is refused."""

    gpu_types: list[str] | None = None
    """Acceptable models of GPU; None for any. Without effect, because GPUs are refused."""

    env: dict[str, str] = {}
    """Environment variables. A value is literal, or refers to variables of the host where the job was submitted (on a
    cluster: of the worker) by `${VAR}` or `${VAR:-default}`; in the split layout only as a whole value. Values with
    references reach commands, not PID 1.
    """

    workdir: str | None = None
    """Absolute path of the workspace; None for the image's working directory, else `/app` if it exists, else `/root`.
    The image's `/` counts as unset.
    """

    network_mode: NetworkMode = "public"
    """Network of the sandbox: `public` reaches the internet, `no-network` has loopback only, `allowlist` is refused.
    `allow_internet` is the deprecated form.
    """

    allowed_hosts: list[str] = []
    """Hosts that network mode `allowlist` lets through; an error with any other mode. Never applied, because the mode
    itself is refused.
    """

    mcp_servers: list[McpServer] = []
    """MCP servers of the agent. Refused in the sandbox of a verifier, where no agent acts."""

    skills_dir: str | None = None
    """Directory of skills for the agent. Refused if set."""

    healthcheck: Healthcheck | None = None
    """Check that must succeed before the agent, or the verifier of a clean room, starts; None for no check."""

    setup_commands: list[SetupCommand] = []
    """Commands that run once after the sandbox has started, in order, before the healthcheck. A clean room that starts
    from the task's image has them, too.
    """

    @property
    def works_in_root(self) -> bool:
        """Return whether `workdir` names `/`."""
        return self.workdir is not None and posixpath.normpath(f"/{self.workdir}") in ("/", "//")


class JudgeConfig(Model):
    """The `verifier.judge` table: how an LLM judges the work, for a verifier of type `llm-judge`."""

    model: str | None = None
    """LLM that judges, as `provider/model`; None for the model that the rubric names. The job's judge model replaces
    either.
    """

    rubric_path: str = "tests/rubric.toml"
    """Path of the rubric, relative to the task directory. The same name with `.json` is tried, too; a native task with
    the default may have it at `verifier/rubrics/verifier.toml`, `verifier/rubric.toml` or `verifier/rubric.json`.
    """

    input_dir: str = "/app"
    """Absolute path in the sandbox of the files that are judged."""

    input_type: str = "deliverables"
    """Kind of work that is judged, in words for the prompt of the judge."""

    context: str = ""
    """Text for the prompt of the judge beside the rubric; empty for none."""


class HardeningConfig(Model):
    """The `verifier.hardening` table: the measures taken between the agent's last action and the verifier's start.

    They keep the agent from deciding its own score. An item that is false is skipped, and the result lists it as
    disabled.
    """

    kill_processes: bool = True
    """Whether the processes that the agent left running are killed, the services of the world excepted. Schedulers
    are stopped while the verifier runs if the agent left jobs for them. After an oracle nothing is killed.
    """

    fresh_logs: bool = True
    """Whether files that the agent left in `/logs/verifier`, `/tests` and `/verifier` are removed. If false, a reward
    that was planted there may count.
    """

    restore_build_files: bool = True
    """Whether files that build tools, shells, cron, git and pip read by themselves are restored, and new ones beside
    them removed. False if the task is to change such a file.
    """

    remove_escaping_links: bool = True
    """Whether new links that lead out of the workspace are removed, as well as archives that would unpack over other
    files; links to programs and libraries stay. Files with several hard links are separated.
    """

    cleanup_conftests: bool = True
    """Whether new `conftest.py` files are removed and changed ones restored. False if the task is to write fixtures."""

    cleanup_python_hooks: bool = True
    """Whether code that Python runs as it starts is removed: new `sitecustomize`, `usercustomize`, `.pth` files with
    code, bytecode, and modules that shadow ones that pytest loads.
    """

    own_workspace: bool = True
    """Whether the workspace becomes owned by the verifier's user, writable for no one else. A workspace that is no
    directory any more becomes an empty one.
    """

    pin_environment: bool = True
    """Whether `PATH`, `HOME` and the settings of Python, pytest, git and pip are pinned to those of the image while the
    verifier runs. `verifier.env` overrides single variables.
    """

    verify_tools: bool = True
    """Whether programs and libraries that the verifier depends on are compared with the image, and restored. False if
    the task is to replace one of them in place.
    """

    repository_state: bool = True
    """Whether git shows the history as committed: replaced objects and grafts are ignored, and new flags in the index
    that hide changes are cleared.
    """

    standard_library: bool = True
    """Whether Python imports modules of the standard library from there, even if a new file of the workspace has the
    same name.
    """


class MemoryConfig(Model):
    """The `verifier.memory` table: the published short form of a reward function over the memory space."""

    expected_skills: list[str] = []
    """Names of the skills that the agent should use, and no others. The reward function `skills` scores it by F1, the
    harmonic mean of precision and recall; empty for no such reward.
    """


class CollectCommand(Model):
    """A shell command that prepares the work for the verifier: an entry of `verifier.collect`.

    Collect commands run in order in the agent's sandbox, after the agent has stopped and before the verifier starts. A
    command that fails is a warning, and the verifier runs nevertheless.
    """

    command: str
    """Command for `sh -c`. It starts in the workspace, with the environment of the verifier."""

    service: str = "main"
    """Container in which the command runs. Any other than `main` is refused."""

    timeout_sec: float = Field(default=60.0, gt=0)
    """Seconds that the command may take. A command that takes longer has failed."""

    user: str | int | None = None
    """User name or uid that the command runs as; None for the default user of a verifier (`Task.verifies_as`)."""


class VerifierConfig(Model):
    """The `verifier` table of a task or of one of its steps.

    A step inherits the keys that it leaves unset from the task's own table. Entries of its `env` and `collect` are
    added to those of the task.
    """

    type: Literal["test-script", "llm-judge"] = "test-script"
    """Way of scoring: `test-script` runs `test.sh`, or what `verifier/verifier.md` declares instead; `llm-judge` asks
    an LLM, as `judge` says.
    """

    timeout_sec: float = Field(default=600.0, gt=0)
    """Seconds that the verifier's program may run. One that takes longer raises a `VerifierTimeoutError`."""

    env: dict[str, str] = {}
    """Environment variables of the verifier, which override those of the sandbox and the pinned ones. Judges find their
    API keys here, too. Values may name host variables, as in `SandboxConfig.env`.
    """

    reward_range: tuple[float, float] = (0.0, 1.0)
    """Smallest and largest valid reward. It may only widen [0, 1]; a reward outside of it is an error."""

    user: str | int | None = None
    """User name or uid that the verifier runs as; None for the default user of a verifier (`Task.verifies_as`)."""

    network_mode: NetworkMode | None = None
    """Network of the verifier's clean room; None for that of its sandbox table. Without `sandbox_mode` `separate`, a
    mode other than that of the task's sandbox is refused.
    """

    allowed_hosts: list[str] = []
    """Hosts that network mode `allowlist` lets through; an error with any other mode. Never applied, because the mode
    itself is refused.
    """

    service: str = "main"
    """Container in which the verifier runs. Any other than `main` is refused."""

    sandbox_mode: VerifierMode = "auto"
    """Sandbox in which the verifier runs, `environment_mode` in task.toml; the values are those of `VerifierMode`. The
    default becomes `separate` if the file has a `sandbox` table. The job may override it.
    """

    sandbox: SandboxConfig | None = None
    """Sandbox of the clean room, `verifier.environment` in task.toml, in place of the task's whole `sandbox` table;
    None for one like the task's. Without an image of its own it uses the task's.
    """

    collect: list[CollectCommand] = []
    """Commands that run after the agent has stopped and before the verifier, in order."""

    pytest_plugins: list[str] = []
    """Pytest plugins to load, as names of entry points or modules. Hardening turns autoloading off, except for plugins
    that the image has and those installed after the agent has stopped.
    """

    hardening: HardeningConfig = HardeningConfig()
    """Measures that keep the agent's leftovers from deciding the score."""

    judge: JudgeConfig | None = None
    """Settings of the LLM judge; None for the defaults of `JudgeConfig`. Without effect for type `test-script`."""

    memory: MemoryConfig | None = None
    """Expected use of skills, as a reward; None for no such reward."""

    workdir: Literal["workspace", "verifier"] = "workspace"
    """Directory in which `test.sh` starts: the workspace (`/` if `Task.starts_in_root`), or the directory of the
    verifier's own files. A command of verifier.md always starts in the latter.
    """

    reward_key: str | None = Field(default=None, min_length=1)
    """Key of `reward.json` that is the scalar reward if there is no `reward`; None for an aggregate policy's result, or
    in the split layout the only key. The job may override it.
    """


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


class VerifierOutputs(Model):
    """The `outputs` table of verifier.md: the files that a verifier writes, as absolute paths in the sandbox.

    A file outside of `/logs/verifier` is copied to the results under its default name.
    """

    reward_text: str = "/logs/verifier/reward.txt"
    """Path of the file with the scalar reward, one number."""

    reward_json: str = "/logs/verifier/reward.json"
    """Path of the file with the reward and its metrics. It counts before `reward_text`; both must agree."""

    details_json: str | None = None
    """Path of a file with details, for people; None for `/logs/verifier/reward-details.json`. Only a reward kit gets
    the path, by a variable.
    """

    aggregate_policy: AggregatePolicy | None = None
    """Policy that makes the scalar reward of metrics if `reward.json` has no `reward`; None for no such policy (a
    reward kit's criteria then have the scoring of their rubric).
    """


class VerifierStrategy(Model):
    """One way to score: an entry of `verifier.strategies` in verifier.md.

    The fields that matter depend on `type`. Paths are relative to the directory of the verifier, or to that of the
    task.
    """

    type: Literal["script", "llm-judge", "reward-kit", "agent-judge", "ors-episode"]
    """Kind of strategy: `script` runs a command, `llm-judge` asks an LLM about each criterion of a rubric, `reward-kit`
    runs a Python program that reports metrics, `agent-judge` asks an LLM in a declared role, `ors-episode` reads ORS
    rewards.
    """

    command: str | None = None
    """Command of a `script` for `sh -c`, started in the directory of the verifier; required there."""

    rubric: str | None = None
    """Path of the rubric of an `llm-judge`; required there."""

    model: str | None = None
    """LLM of a judge, as `provider/model`; None for that of the rubric (`llm-judge`), else of the job, which replaces
    either.
    """

    input_dir: str | None = None
    """Absolute path in the sandbox of the files that an `llm-judge` judges; None for `/app`."""

    context: str | None = None
    """Text for the prompt of an `llm-judge` beside the rubric, with the content of `context_file` at its end."""

    context_file: str | None = None
    """Path of a file whose text is added to `context` when the task is read; None for none."""

    root: str | None = None
    """Directory of a `reward-kit`; required there."""

    entrypoint: str | None = None
    """Python program of a `reward-kit`, relative to `root`; None for `reward.py`."""

    criteria: str | None = None
    """Path of the criteria of a `reward-kit`; None for none. If it is a rubric (TOML or JSON), the kit must report
    exactly its criteria as metrics.
    """

    role: str | None = None
    """Name of the role of an `agent-judge`, whose section `## role:<name>` is part of its prompt; required there."""

    isolation: str | None = None
    """Isolation of an `agent-judge`; required there, and `verifier-only` is the only value."""

    inputs: list[str] = []
    """Files that an `agent-judge` or `ors-episode` reads; required there. Paths are absolute in the sandbox, or
    relative to the results of the rollout.
    """

    format: Literal["json", "jsonl", "auto"] | None = None
    """Format of the inputs of an `ors-episode`: `json` (a value or a list), `jsonl` (a value a line), or `auto` to tell
    by the content. None for `auto`.
    """


class VerifierDocument(Model):
    """`verifier/verifier.md`: the declared strategies, and the one that scores.

    Only `default_strategy` is used. Further strategies are a warning.
    """

    document_version: str | None = None
    """Version of the format, as written; None if not given. Nothing reads it."""

    name: str | None = None
    """Name of the verifier, passed on to a reward kit; None if not given."""

    default_strategy: str
    """Name of the strategy that scores. Default: the first one declared."""

    strategies: dict[str, VerifierStrategy]
    """Declared strategies by name, at least one."""

    outputs: VerifierOutputs = VerifierOutputs()
    """Files that the verifier writes. The file may have the table beside `verifier` instead of in it."""

    rubric: dict[str, Any] = {}
    """Declared weights of dimensions, as written. Nothing reads them."""

    role_prompts: dict[str, str] = {}
    """Texts of the `## role:<name>` sections of the body, by role."""

    @property
    def strategy(self) -> VerifierStrategy:
        """Return the strategy that scores."""
        return self.strategies[self.default_strategy]


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
