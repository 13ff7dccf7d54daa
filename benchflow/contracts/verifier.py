"""Models of the verifier that a task or a step declares, and of the document verifier.md."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from benchflow.contracts.base import Model
from benchflow.contracts.reward import AggregatePolicy
from benchflow.contracts.sandbox import NetworkMode
from benchflow.contracts.sandbox_config import SandboxConfig

VerifierMode = Literal["auto", "shared", "separate"]
"""Sandbox in which a verifier runs.

`shared` is the sandbox in which the agent worked. `separate` is a clean room: a fresh sandbox that receives the
workspace, the declared artifacts, the files that scorers read and the recorded state of the world, and nothing else of
the agent's. `auto` is a clean room if that is known to score honest work the same, else the shared sandbox, because a
verifier may read more than a clean room has.
"""


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
    """Whether files that build tools, shells, git and pip read by themselves are restored, and new ones beside them
    removed. False if the task is to change such a file.
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
