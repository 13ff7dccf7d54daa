"""Features that a task may validly ask for and that are not supported yet, as a table: feature, key, remedy.

Support for a feature comes with the deletion of its row. What a particular sandbox lacks is decided by its
`Capabilities`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from benchflow.contracts.sandbox import Capabilities
from benchflow.contracts.sandbox_config import SandboxConfig
from benchflow.contracts.task import AgentConfig, Task
from benchflow.contracts.verifier import VerifierConfig, VerifierMode
from benchflow.errors import UnsupportedFeatureError
from benchflow.tasks.published import find_published_key

Find = Callable[[Task], str | None]
"""Returns the key at which a task asks for a feature; None when it doesn't."""


class Feature(NamedTuple):
    """A row of `FEATURES`."""

    what: str
    """The feature, as a noun phrase for messages."""

    find: Find
    """Finds the key that asks for it."""

    remedy: str
    """Advice to the author, as an imperative."""


class Missing(NamedTuple):
    """An unsupported feature that a task asks for."""

    what: str
    """The feature, as a noun phrase for messages."""

    key: str
    """The key that asks for it, as the task's layout spells it, or a file of the task."""

    remedy: str
    """Advice to the author, as an imperative."""


def _list_agents(task: Task) -> Iterator[tuple[str, AgentConfig]]:
    """Yield the agent tables of the task and its steps, with their keys."""
    yield "agent", task.agent
    for index, step in enumerate(task.steps):
        yield f"steps[{index}].agent", step.agent


def _list_verifiers(task: Task) -> Iterator[tuple[str, VerifierConfig]]:
    yield "verifier", task.verifier
    for index, step in enumerate(task.steps):
        yield f"steps[{index}].verifier", step.verifier


def _list_phases(task: Task) -> Iterator[tuple[str, AgentConfig | VerifierConfig]]:
    yield from _list_agents(task)
    yield from _list_verifiers(task)


def _list_sandboxes(task: Task) -> Iterator[tuple[str, SandboxConfig]]:
    """Yield the sandbox tables of the task and of its verifiers, with their keys."""
    yield "sandbox", task.sandbox
    for at, table in _list_verifiers(task):
        if table.sandbox is not None:
            yield f"{at}.sandbox", table.sandbox


def _find_in_sandbox(key: str, asked: Callable[[SandboxConfig], bool]) -> Find:
    """Return a `Find` of `key` in the first sandbox table for which `asked` is true."""
    return lambda task: next((f"{at}.{key}" for at, table in _list_sandboxes(task) if asked(table)), None)


def _find_in_verifier(key: str, asked: Callable[[VerifierConfig], bool]) -> Find:
    """Return a `Find` of `key` in the first verifier table for which `asked` is true."""
    return lambda task: next((f"{at}.{key}" for at, table in _list_verifiers(task) if asked(table)), None)


def _find_if(key: str, asked: Callable[[Task], object]) -> Find:
    """Return a `Find` of `key` that finds it in a task for which `asked` is true."""
    return lambda task: key if asked(task) else None


def _find_other_containers(task: Task) -> str | None:
    """Return the compose file if it is refused for something else than a key of the main container."""
    return task.compose_file if task.compose_refused is not None and not _find_compose_key(task) else None


def _find_compose_key(task: Task) -> str | None:
    """Return the key of the main container, or the variable, for which the compose file is refused."""
    refused = task.compose_refused or ""
    return refused if refused.startswith(("services.main.", "sandbox.env.")) else None


def _find_phase_network(task: Task) -> str | None:
    for at, table in _list_phases(task):
        if isinstance(table, VerifierConfig) and table.sandbox_mode == "separate":
            continue
        if table.network_mode not in (None, task.sandbox.network_mode):
            return f"{at}.network_mode"
    return None


def _find_verifier_containers(task: Task) -> str | None:
    """Return the compose file that the clean room of a separate verifier would be built from."""
    tables = {None: task.verifier} | {step.name: step.verifier for step in task.steps}
    for name, table in tables.items():
        file = task.verifier_build_of(name)
        if file and not file.endswith("/Dockerfile") and table.sandbox_mode == "separate":
            return file
    return None


def _find_artifact_service(task: Task) -> str | None:
    places = [("artifacts", task.artifacts)]
    places += [(f"steps[{index}].artifacts", step.artifacts) for index, step in enumerate(task.steps)]
    for at, artifacts in places:
        for index, artifact in enumerate(artifacts):
            if artifact.service != "main":
                return f"{at}[{index}].service"
    return None


def _find_step_users(task: Task) -> list[str]:
    """Return the keys of the steps' agent users that differ from the task's."""
    users = ((index, step.agent.user) for index, step in enumerate(task.steps))
    return [f"steps[{index}].agent.user" for index, user in users if user not in (None, task.agent.user)]


def _find_role_setting(task: Task) -> str | None:
    """Return the first setting of a scene or an acting role that is not supported: all but the role's agent."""
    for scene in task.scenes:
        if scene.skills_dir is not None:
            return f"scenes.{scene.name}.skills_dir"
    for name in dict.fromkeys(turn.role for scene in task.scenes for turn in scene.turns):
        asked = task.roles[name].model_dump(exclude_defaults=True, exclude={"agent"})
        if asked:
            return f"agents.roles.{name}.{next(iter(asked))}"
    return None


_ONE_CONTAINER = "use one container: environment/Dockerfile, or docker_image"

FEATURES: tuple[Feature, ...] = (
    Feature("containers beside the main one", _find_other_containers, _ONE_CONTAINER),
    Feature(
        "a key of the compose file that changes the main container, or a value that Compose would interpolate",
        _find_compose_key,
        "say it in environment/Dockerfile or the task's configuration, and remove the compose file",
    ),
    Feature(
        "scenes of several roles",
        _find_if("scenes", lambda task: len({turn.role for scene in task.scenes for turn in scene.turns}) > 1),
        "have one role act in all scenes",
    ),
    Feature(
        "roles with settings of their own",
        _find_role_setting,
        "leave the role's agent alone, and set the rest by the job's options",
    ),
    Feature(
        "an agent user of a step's own",
        lambda task: next(iter(_find_step_users(task)), None) if task.layout == "native" else None,
        "name the user in `agent.user`, for all steps",
    ),
    Feature(
        "scenes in a task of several steps",
        _find_if("scenes", lambda task: task.scenes and task.steps),
        "use `scenes` or `[[steps]]`",
    ),
    Feature("a simulated user", _find_if("user", lambda task: task.user), "remove `user` and its persona"),
    Feature(
        "nudges",
        _find_if("benchflow.nudges", lambda task: "nudges" in task.extension),
        "remove `benchflow.nudges`",
    ),
    Feature(
        "composed prompts",
        _find_if("benchflow.prompt", lambda task: "prompt" in task.extension),
        "remove `benchflow.prompt`",
    ),
    Feature(
        "containers beside the verifier's",
        _find_verifier_containers,
        "use one container: a Dockerfile in the verifier's directory, or a docker_image",
    ),
    Feature(
        "what the verifier's sandbox is made of, without one of its own",
        _find_in_verifier("sandbox", lambda table: table.sandbox is not None and table.sandbox_mode != "separate"),
        "do not have it verified where the agent worked: leave out --verify-in shared",
    ),
    Feature(
        "tool servers in the verifier's sandbox",
        _find_in_verifier(
            "sandbox.mcp_servers", lambda table: table.sandbox is not None and table.sandbox.mcp_servers != []
        ),
        "remove them: no agent acts there",
    ),
    Feature(
        "commands that collect in another service",
        _find_in_verifier("collect", lambda table: any(command.service != "main" for command in table.collect)),
        _ONE_CONTAINER,
    ),
    Feature(
        "a verifier in another service",
        _find_in_verifier("service", lambda table: table.service != "main"),
        _ONE_CONTAINER,
    ),
    Feature("artifacts of another service", _find_artifact_service, _ONE_CONTAINER),
    Feature(
        "a skills directory",
        _find_in_sandbox("skills_dir", lambda table: table.skills_dir is not None),
        "remove `skills_dir`",
    ),
    Feature(
        "another operating system than Linux",
        _find_in_sandbox("os", lambda table: table.os != "linux"),
        'set `os` to "linux"',
    ),
    Feature("GPUs", _find_in_sandbox("gpus", lambda table: table.gpus > 0), "set `gpus` to 0"),
    Feature(
        "a network allowlist",
        _find_in_sandbox("network_mode", lambda table: table.network_mode == "allowlist"),
        'write network_mode "public" or "no-network"',
    ),
    Feature(
        "a network allowlist for the verifier",
        _find_in_verifier(
            "network_mode",
            lambda table: table.network_mode == "allowlist" and table.sandbox_mode == "separate",
        ),
        'write network_mode "public" or "no-network"',
    ),
    Feature(
        "another network mode for one phase",
        _find_phase_network,
        'give the agent and the verifier the network mode of the sandbox, or verify in sandbox_mode "separate"',
    ),
)


def apply_verifier_options(task: Task, mode: VerifierMode | None, reward_key: str | None = None) -> Task:
    """Return the task with the verifier settings of a job set in all its verifiers.

    Args:
        task: The task.
        mode: Where the verifiers run; None and `auto` keep the task's choice.
        reward_key: Key of the reward among several that a verifier reports; None keeps the task's choice.
    """
    wanted = {"sandbox_mode": None if mode == "auto" else mode, "reward_key": reward_key}
    changed = {name: value for name, value in wanted.items() if value is not None}
    if not changed:
        return task

    def moved(config: VerifierConfig) -> VerifierConfig:
        return config.model_copy(update=changed)

    steps = [step.model_copy(update={"verifier": moved(step.verifier)}) for step in task.steps]
    return task.model_copy(update={"verifier": moved(task.verifier), "steps": steps})


def find_unsupported_features(task: Task) -> list[Missing]:
    """Return the features that the task asks for and that no sandbox supports."""
    missing = [
        Missing(feature.what, spell_key(task, key), feature.remedy)
        for feature in FEATURES
        if (key := feature.find(task)) is not None
    ]
    extras = {**task.compat_extra, **{f"benchflow.{key}": value for key, value in task.extension.items()}}
    for key, value in extras.items():
        carried = find_published_key(key, value)
        if carried is not None and carried.changes:
            missing.append(Missing(carried.what, spell_key(task, key), carried.remedy))
    return missing


def require_supported(task: Task, capabilities: Capabilities) -> list[str]:
    """Check that a task can run in a sandbox. Return warnings about settings without enforcement or effect.

    Args:
        task: The task.
        capabilities: Those of the sandbox provider.

    Raises:
        UnsupportedFeatureError: The task needs a feature that is not supported; names the first one.
    """
    for missing in [*find_unsupported_features(task), *_find_lacking(task, capabilities)]:
        raise UnsupportedFeatureError(
            f"asks for what is not supported: {missing.what}",
            file=f"{task.name}/{find_file(task, missing.key)}",
            key=missing.key,
            remedy=missing.remedy,
        )
    return _warn_of_unenforced(task, capabilities) + _warn_of_ineffective(task)


def _find_lacking(task: Task, capabilities: Capabilities) -> Iterator[Missing]:
    """Yield the features that the task asks for and that this sandbox provider in particular lacks."""
    provider = capabilities.provider
    other = "choose another sandbox"

    def missing(what: str, key: str) -> Missing:
        return Missing(f"{what} in sandbox {provider!r}", spell_key(task, key), other)

    for at, sandbox in _list_sandboxes(task):
        if sandbox.os not in capabilities.os:
            yield missing(f"os {sandbox.os!r}", f"{at}.os")
        if sandbox.network_mode not in capabilities.network_modes:
            yield missing(f"network mode {sandbox.network_mode!r}", f"{at}.network_mode")
    for at, verifier in _list_verifiers(task):
        if verifier.network_mode is not None and verifier.network_mode not in capabilities.network_modes:
            yield missing(f"network mode {verifier.network_mode!r}", f"{at}.network_mode")
        if verifier.sandbox_mode == "separate" and capabilities.lockdown != "clean_room":
            yield missing("a clean room for the verifier", f"{at}.sandbox_mode")
        for item in sorted(verifier.hardening.model_fields_set) if capabilities.lockdown == "none" else ():
            if getattr(verifier.hardening, item):
                yield missing("a verifier that is kept from what the agent leaves", f"{at}.hardening.{item}")
    if not capabilities.dockerfile and task.sandbox.docker_image is None and task.dockerfile:
        yield missing("building an image", task.dockerfile)
    if not capabilities.users:
        for at, table in _list_phases(task):
            if table.user not in (None, "root", 0, "0"):
                yield missing(f"user {table.user!r}", f"{at}.user")


def _warn_of_unenforced(task: Task, capabilities: Capabilities) -> list[str]:
    """Return warnings about a lack of lockdown, and about limits, other than the default ones, without enforcement."""
    default = SandboxConfig()
    limits = (
        ("cpus", capabilities.cpu_limit),
        ("memory_mb", capabilities.memory_limit),
        ("storage_mb", capabilities.storage_limit),
    )
    found = [
        f"{spell_key(task, f'{at}.{key}')} = {getattr(sandbox, key)} is not enforced "
        f"by sandbox {capabilities.provider!r}"
        for at, sandbox in _list_sandboxes(task)
        for key, enforced in limits
        if not enforced and getattr(sandbox, key) != getattr(default, key)
    ]
    if capabilities.lockdown == "none":
        found.append(
            f"sandbox {capabilities.provider!r} has no lockdown: what the agent leaves running, and programs that it "
            "changes, can decide the score"
        )
    return found


def _warn_of_ineffective(task: Task) -> list[str]:
    """Return warnings about settings of the task that have no effect."""
    found = []
    if task.layout == "split":
        # Published tasks are taken as they are: their scripts run as this user.
        found += [f"{key} has no effect on the agent, only on solve.sh and setup.sh" for key in _find_step_users(task)]
    if task.roles and not task.scenes:
        found.append("agents.roles has no effect, because no scene uses the roles")
    if task.verifier.judge is not None and task.verifier.type == "test-script":
        found.append('verifier.judge has no effect with verifier.type "test-script"')
    if task.sandbox.gpu_types and task.sandbox.gpus == 0:
        found.append(f"{spell_key(task, 'sandbox.gpu_types')} has no effect without gpus")
    document = task.verifier_document
    if document is not None and len(document.strategies) > 1:
        found.append(f"of the verifier's strategies, {document.default_strategy!r} alone scores")
    return found


_SPLIT_NAMES = {"sandbox": "environment", "oracle": "solution", "sandbox_mode": "environment_mode"}


def spell_key(task: Task, key: str) -> str:
    """Return a normal key as the task's layout spells it; paths of files are returned unchanged."""
    if task.layout == "native" or "/" in key:
        return key
    return ".".join(_SPLIT_NAMES.get(part, part) for part in key.split("."))


def find_file(task: Task, key: str) -> str:
    """Return the file in which a normal key of the task stands, relative to the task's directory."""
    if key in (task.dockerfile, task.compose_file) or key == _find_verifier_containers(task):
        return key
    if key == task.compose_refused and key.startswith("services."):
        return str(task.compose_file)
    if key.startswith(("verifier.strategies", "verifier.rubric")):
        return f"{task.verifier_dir}/verifier.md"
    return task.config_file
