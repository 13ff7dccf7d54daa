"""What is valid but not carried out is refused by name; what can be missed is recorded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.task_writer import write_step, write_task

from benchflow.contracts.sandbox import Capabilities
from benchflow.contracts.task import AgentConfig, StepConfig
from benchflow.errors import TaskError, UnsupportedFeatureError
from benchflow.tasks import apply_verifier_options, check, load_task, require_supported

Builder = Callable[..., Path]

EVERYTHING = Capabilities(
    provider="able",
    network_modes=("public", "no-network", "allowlist"),
    gpus=True,
    cpu_limit=True,
    memory_limit=True,
    storage_limit=True,
    dockerfile=True,
    lockdown="clean_room",
)


def test_what_is_carried_out_passes_without_a_warning(split: Builder) -> None:
    toml = """
    artifacts = [{ source = "/a", exclude = ["b"] }]
    [agent]
    user = "agent"
    network_mode = "no-network"
    [verifier]
    reward_range = [-1, 1]
    user = "root"
    pytest_plugins = ["x"]
    hardening = { cleanup_conftests = false }
    [environment]
    cpus = 2
    memory_mb = 4096
    storage_mb = 20480
    network_mode = "no-network"
    workdir = "/w"
    env = { A = "b" }
    healthcheck = { command = "true" }
    setup_commands = [{ command = "true", service = "main" }]
    [[steps]]
    name = "one"
    min_reward = 0.5
    """
    task = load_task(split(toml, {"steps/one/instruction.md": "Go."}))
    assert require_supported(task, EVERYTHING) == []


IN_TOML = [
    ("environment.gpus", "[environment]\ngpus = 1"),
    ("environment.os", "[environment]\nos = 'windows'"),
    ("environment.network_mode", "[environment]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['a']"),
    ("environment.skills_dir", "[environment]\nskills_dir = '/skills'"),
    ("agent.network_mode", "[agent]\nnetwork_mode = 'no-network'"),
    ("verifier.network_mode", "[verifier]\nnetwork_mode = 'no-network'"),
    ("verifier.environment.gpus", "[verifier.environment]\ngpus = 1"),
    ("verifier.environment.os", "[verifier.environment]\nos = 'windows'"),
    ("verifier.environment.network_mode", "[verifier.environment]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['a']"),
    ("verifier.environment.skills_dir", "[verifier.environment]\nskills_dir = '/skills'"),
    (
        "verifier.environment.mcp_servers",
        "[[verifier.environment.mcp_servers]]\nname = 'a'\nurl = 'http://a/'",
    ),
    (
        "verifier.network_mode",
        "[verifier]\nenvironment_mode = 'separate'\nnetwork_mode = 'allowlist'\nallowed_hosts = ['a']",
    ),
    ("verifier.collect", "[[verifier.collect]]\ncommand = 'x'\nservice = 'db'"),
    ("verifier.service", "[verifier]\nservice = 'db'"),
    ("artifacts[0].service", "artifacts = [{ source = '/a', service = 'db' }]"),
    ("steps[0].verifier.collect", "[[steps]]\nname = 'one'\n[[steps.verifier.collect]]\ncommand = 'x'\nservice = 'db'"),
    ("steps[0].agent.network_mode", "[[steps]]\nname = 'one'\n[steps.agent]\nnetwork_mode = 'no-network'"),
    ("steps[0].artifacts[0].service", "[[steps]]\nname = 'one'\nartifacts = [{source = '/a', service = 'b'}]"),
    ("environment.tpu", "[environment.tpu]\ntype = 'v6e'"),
    ("environment.setup_commands[0].service", "[[environment.setup_commands]]\ncommand = 'x'\nservice = 'db'"),
    ("environment.setup_commands[0].host_lock", "[[environment.setup_commands]]\ncommand = 'x'\nhost_lock = 'l'"),
    (
        "environment.setup_commands[0].capture_dir",
        "[[environment.setup_commands]]\ncommand = 'x'\ncapture_dir = '/d'",
    ),
    ("profile", "profile = 'code-change'"),
]


@pytest.mark.parametrize(("key", "toml"), IN_TOML, ids=[case[0] for case in IN_TOML])
def test_a_feature_of_a_task_toml_is_refused_by_name(split: Builder, key: str, toml: str) -> None:
    root = split(toml, {"steps/one/instruction.md": "Go."})
    task = load_task(root)
    with pytest.raises(UnsupportedFeatureError) as caught:
        require_supported(task, EVERYTHING)
    assert caught.value.key == key
    assert caught.value.file == "split-task/task.toml"
    assert caught.value.remedy
    listed = [problem for problem in check(root) if problem.severity == "unsupported"]
    assert [problem.key for problem in listed] == [key]


ROLES = "agents: {roles: {a: {agent: x}, b: {agent: x}}}\n"

IN_DOCUMENT = [
    ("scenes", ROLES + "scenes: [{turns: [a, b]}]\n"),
    ("user", "user: {model: scripted}\n"),
    ("benchflow.nudges", "benchflow: {nudges: {mode: x}}\n"),
    ("benchflow.prompt", "benchflow: {prompt: {composition: append}}\n"),
    ("benchflow.agent_policy", "benchflow: {agent_policy: {search: disabled}}\n"),
    ("benchflow.runtime_policy", "benchflow: {runtime_policy: {x: 1}}\n"),
    ("benchflow.teams", "benchflow: {teams: {x: 1}}\n"),
    ("benchflow.verifier", "benchflow: {verifier: {entrypoint: verifier/run.py}}\n"),
    ("agents.roles.a.capabilities", "agents: {roles: {a: {agent: x, capabilities: [edit]}}}\n"),
    ("verifier.sandbox.gpus", "verifier: {sandbox: {gpus: 1}}\n"),
    ("profile", "profile: code-change\n"),
]


@pytest.mark.parametrize(("key", "frontmatter"), IN_DOCUMENT, ids=[case[0] for case in IN_DOCUMENT])
def test_a_feature_of_a_task_md_is_refused_by_name(native: Builder, key: str, frontmatter: str) -> None:
    with pytest.raises(UnsupportedFeatureError) as caught:
        require_supported(load_task(native(frontmatter)), EVERYTHING)
    assert (caught.value.key, caught.value.file) == (key, "native-task/task.md")


def test_a_step_of_a_task_md_has_no_user_of_its_own(native: Builder) -> None:
    text = "agent: {user: ada}\nsteps: [{name: a, agent: {user: ada}}, {name: b, agent: {user: ben}}]\n"
    files = {f"steps/{step}/{name}": "x\n" for step in "ab" for name in ("instruction.md", "verifier/test.sh")}
    with pytest.raises(UnsupportedFeatureError) as caught:
        require_supported(load_task(native(text, files=files)), EVERYTHING)
    assert caught.value.key == "steps[1].agent.user"


def test_a_persona_alone_is_a_user(native: Builder) -> None:
    with pytest.raises(UnsupportedFeatureError, match="simulated user"):
        require_supported(load_task(native("", "Base.\n\n## user-persona\n\nSomeone.\n")), EVERYTHING)


def test_a_compose_file_is_refused_by_name(split: Builder) -> None:
    root = split(files={"environment/docker-compose.yaml": "services: {other: {}}\n"})
    with pytest.raises(UnsupportedFeatureError) as caught:
        require_supported(load_task(root), EVERYTHING)
    assert caught.value.file == "split-task/environment/docker-compose.yaml"


def test_containers_beside_the_verifier_are_refused_only_where_it_has_a_sandbox_of_its_own(split: Builder) -> None:
    files = {"tests/docker-compose.yaml": "services: {}\n", "tests/Dockerfile": "FROM a\n"}
    root = split("[verifier]\nenvironment_mode = 'separate'\n", files)
    with pytest.raises(UnsupportedFeatureError, match="containers beside the verifier's") as caught:
        require_supported(load_task(root), EVERYTHING)
    assert caught.value.file == "split-task/tests/docker-compose.yaml"
    assert require_supported(apply_verifier_options(load_task(root), "shared"), EVERYTHING) == []


def test_a_verifier_with_a_sandbox_of_its_own_is_not_run_where_the_agent_worked(split: Builder) -> None:
    task = load_task(split("[verifier.environment]\ncpus = 1\n"))
    assert require_supported(apply_verifier_options(task, "separate"), EVERYTHING) == []
    with pytest.raises(UnsupportedFeatureError) as caught:
        require_supported(apply_verifier_options(task, "shared"), EVERYTHING)
    assert caught.value.key == "verifier.environment"
    assert caught.value.remedy is not None and "--verify-in" in caught.value.remedy


def test_a_verifier_may_have_another_network_mode_in_a_sandbox_of_its_own(split: Builder) -> None:
    toml = "[[steps]]\nname = 'one'\n[steps.verifier]\nenvironment_mode = 'separate'\nnetwork_mode = 'no-network'\n"
    task = load_task(split(toml, {"steps/one/instruction.md": "Go."}))
    assert require_supported(task, EVERYTHING) == []
    lacking = EVERYTHING.model_copy(update={"network_modes": ("public",)})
    with pytest.raises(UnsupportedFeatureError) as caught:
        require_supported(task, lacking)
    assert caught.value.key == "steps[0].verifier.network_mode"


def test_every_kind_of_verifier_strategy_is_carried_out(native: Builder) -> None:
    text = "---\nverifier: {strategies: {kit: {type: reward-kit, root: kit}}}\n---\n"
    root = native(files={"verifier/verifier.md": text, "verifier/kit/reward.py": ""})
    assert require_supported(load_task(root), EVERYTHING) == []


@pytest.mark.parametrize(
    ("toml", "lacking", "key"),
    [
        ("[environment]\nnetwork_mode = 'no-network'", {"network_modes": ("public",)}, "environment.network_mode"),
        ("[agent]\nuser = 'agent'", {"users": False}, "agent.user"),
        ("", {"dockerfile": False}, "environment/Dockerfile"),
        ("", {"os": ("windows",)}, "environment.os"),
    ],
)
def test_what_the_sandbox_lacks_is_refused_by_name(
    split: Builder, toml: str, lacking: dict[str, object], key: str
) -> None:
    task = load_task(split(toml))
    with pytest.raises(UnsupportedFeatureError, match="'able'") as caught:
        require_supported(task, EVERYTHING.model_copy(update=lacking))
    assert caught.value.key == key


def test_root_is_a_user_that_every_sandbox_has(split: Builder) -> None:
    task = load_task(split("[agent]\nuser = 'root'\n[verifier]\nuser = 0"))
    assert require_supported(task, EVERYTHING.model_copy(update={"users": False})) == []


def test_a_limit_that_cannot_be_enforced_is_a_recorded_warning(split: Builder) -> None:
    task = load_task(split("[environment]\nstorage_mb = 20480"))
    without = EVERYTHING.model_copy(update={"storage_limit": False})
    assert require_supported(task, without) == ["environment.storage_mb = 20480 is not enforced by sandbox 'able'"]
    assert require_supported(load_task(split(name="default")), without) == []


def test_declarations_without_effect_are_recorded(native: Builder) -> None:
    text = "---\nverifier: {strategies: {a: {type: script, command: x}, b: {type: script, command: y}}}\n---\n"
    root = native(
        ROLES + "sandbox: {gpu_types: [H100]}\nverifier: {judge: {model: m}}\n",
        files={"verifier/verifier.md": text},
    )
    warnings = require_supported(load_task(root), EVERYTHING)
    assert [warning.split(" ")[0] for warning in warnings] == [
        "agents.roles",
        "verifier.judge",
        "sandbox.gpu_types",
        "of",
    ]


def test_a_steps_own_user_acts_in_its_scripts_alone_where_the_layout_is_split(split: Builder) -> None:
    text = 'agent.user = "ada"\nsteps = [{name = "a", agent.user = "ada"}, {name = "b", agent.user = "ben"}]\n'
    files = {f"steps/{step}/{name}": "#!/bin/sh\n" for step in "ab" for name in ("instruction.md", "tests/test.sh")}
    warnings = require_supported(load_task(split(text, files)), EVERYTHING)
    assert warnings == ["steps[1].agent.user has no effect on the agent, only on solve.sh and setup.sh"]


@pytest.mark.parametrize(
    "toml",
    [
        "[[environment.setup_commands]]\ncommand = 'x'\nservice = 'main'\nhost_lock = ''",
        "[profiles.a]\nx = 1",
        "multi_step_reward_mode = 'mean'",
    ],
)
def test_published_keys_that_change_nothing_are_listed_and_run(split: Builder, toml: str) -> None:
    root = split(toml)
    task = load_task(root)
    assert require_supported(task, EVERYTHING) == []
    assert task.compat_extra
    assert {problem.severity for problem in check(root)} == {"warning"}


def test_a_job_may_name_the_reward_key_of_all_tasks(tmp_path: Path) -> None:
    config = (
        '[verifier]\nreward_key = "own"\n[[steps]]\nname = "one"\n[[steps]]\nname = "two"\n'
        '[steps.verifier]\nreward_key = "of-the-step"\n'
    )
    root = write_task(tmp_path, config=config)
    for name in ("one", "two"):
        write_step(root, name, solve="true\n", test="true\n")
    task = load_task(root)
    assert (task.verifier.reward_key, task.steps[1].verifier.reward_key) == ("own", "of-the-step")
    assert apply_verifier_options(task, None, None) == task
    named = apply_verifier_options(task, None, "wanted")
    assert [one.reward_key for one in (named.verifier, *(step.verifier for step in named.steps))] == ["wanted"] * 3
    assert named.verifier.sandbox_mode == task.verifier.sandbox_mode


def test_a_native_task_may_say_where_its_script_starts_and_which_key_is_its_reward(native: Builder) -> None:
    task = load_task(native("name: org/a\nverifier: {workdir: verifier, reward_key: style}\n", "Do it."))
    assert (task.verifier.workdir, task.verifier.reward_key) == ("verifier", "style")
    with pytest.raises(TaskError, match="workdir"):
        load_task(native("name: org/a\nverifier: {workdir: /app}\n", "Do it."))


def test_only_scripts_of_the_split_layout_start_in_the_root(tmp_path: Path, native: Builder) -> None:
    split, other = load_task(write_task(tmp_path)), load_task(native("name: org/a\n", "Do it."))
    assert [task.starts_in_root(has) for task in (split, other) for has in (True, False)] == [False, True, False, False]


def test_only_scripts_of_the_split_layout_act_as_whom_the_task_or_its_image_names(
    tmp_path: Path, native: Builder
) -> None:
    other = load_task(native("name: org/a\nagent: {user: nobody}\n", "Do it."))
    assert other.acts_as(None, "of-the-image") is None
    split = load_task(write_task(tmp_path))
    assert [split.acts_as(None, user) for user in (None, "of-the-image")] == [None, "of-the-image"]
    named = split.model_copy(
        update={
            "agent": AgentConfig(user=0),
            "steps": [StepConfig(name="a"), StepConfig(name="b", agent=AgentConfig(user="own"))],
        }
    )
    assert [named.acts_as(step, "of-the-image") for step in (None, "a", "b")] == [0, 0, "own"]
