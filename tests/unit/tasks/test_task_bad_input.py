"""Bad input: each is a typed error that names the file, the key and what to write instead."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
import tomlkit
import yaml
from support.complete_tasks import COMPLETE_BODY, COMPLETE_FRONTMATTER, COMPLETE_TOML

from benchflow.errors import TaskError
from benchflow.tasks import load_task, read_task

Builder = Callable[..., Path]


def error_of(root: Path) -> TaskError:
    with pytest.raises(TaskError) as caught:
        load_task(root)
    assert type(caught.value) is TaskError
    return caught.value


VALUES_IN_TOML = [
    ("[agent]\ntimeout_sec = 0", "agent.timeout_sec", "greater than 0"),
    ("[agent]\ntimeout_sec = true", "agent.timeout_sec", "not true or false"),
    ('[agent]\ntimeout_sec = "soon"', "agent.timeout_sec", "'soon'"),
    ("[agent]\ntimeout_sec = nan", "agent.timeout_sec", "finite"),
    ("[verifier]\ntimeout_sec = inf", "verifier.timeout_sec", "finite"),
    ("[metadata]\nscore = nan", "metadata.score", "finite"),
    ("agent = 3", "agent", "not 3"),
    ("[environment]\ncpus = -1", "environment.cpus", "greater than 0"),
    ("[environment]\ngpus = -1", "environment.gpus", "0"),
    ('[environment]\nmemory = "much"', "environment.memory", "'2G'"),
    ("[environment]\nmemory = 2", "environment.memory", "'2G'"),
    ('[environment]\nmemory = "2G"\nmemory_mb = 1', "environment.memory", "contradicts"),
    ('[environment]\nallow_internet = "yes"', "environment.allow_internet", "true or false"),
    ('[environment]\nnetwork_mode = "none"', "environment.network_mode", "'public'"),
    ('[environment]\nnetwork_mode = "allowlist"', "environment.allowed_hosts", "needs hosts"),
    ('[environment]\nallowed_hosts = ["a"]', "environment.allowed_hosts", "no effect"),
    ('[environment]\nworkdir = "app"', "environment.workdir", "absolute"),
    ('[environment]\nimage = "a"\ndocker_image = "b"', "environment.image", "both given"),
    ("[environment.env]\nA = [1]", "environment.env.A", "must be a text"),
    ('[environment.env]\n"A=B" = "x"', "environment.env.A=B", "name of an environment variable"),
    ("[environment.healthcheck]\nretries = 3", "environment.healthcheck.command", "is missing"),
    ("[[environment.setup_commands]]\ncwd = '/'", "environment.setup_commands[0].command", "is missing"),
    ("[[environment.mcp_servers]]\nname = 'a'", "environment.mcp_servers[0].url", "required"),
    ("[verifier]\nreward_range = [0.2, 1]", "verifier.reward_range", "narrower"),
    ("[verifier]\nreward_range = [0]", "verifier.reward_range[1]", "is missing"),
    ('[verifier]\ntype = "magic"', "verifier.type", "'magic'"),
    ("[verifier]\nenvironment_mode = 'shared'\n[verifier.environment]\ncpus = 1", "verifier.environment", "no effect"),
    ("[verifier.environment]\ncpus = 0", "verifier.environment.cpus", "greater than 0"),
    ("[verifier.environment]\ncpus = 1\n[verifier.sandbox]\ncpus = 1", "verifier.environment", "both given"),
    ("[environment]\ncpus = 1\n[sandbox]\ncpus = 1", "environment", "both given"),
    ("[solution]\n[oracle]", "solution", "both given"),
    ("[solution]\nA = '1'\n[solution.env]\nA = '2'", "solution.A", "contradicts"),
    ("version = '1.0'\nschema_version = '1.0'", "version", "both given"),
    ("artifacts = [{ source = '/a', destination = '../b' }]", "artifacts[0].destination", "inside"),
    ("artifacts = [3]", "artifacts[0]", "not 3"),
    ("artifacts = ['']", "artifacts[0].source", "empty"),
    ("multi_step_reward_strategy = 'best'", "multi_step_reward_strategy", "'best'"),
    ("context_root = 'nowhere'", "context_root", "no directory 'nowhere'"),
    *(
        (f'[[steps]]\nname = "{name}"', "steps[0].name", "directory's name")
        for name in ("a/b", "..", ".a", "", " ", "a\\u0007b", "a\\nb", "a\\u202eb", "a\\\\b", "\u00fc" * 101)
    ),
    ("[[steps]]\nname = 'a'\nmin_reward = 'x'", "steps[0].min_reward", "number"),
    ("[[steps]]\nname = 'a'\n[steps.agent]\ntimeout_sec = 0", "steps[0].agent.timeout_sec", "greater than 0"),
]


@pytest.mark.parametrize(("toml", "key", "words"), VALUES_IN_TOML, ids=[case[0] for case in VALUES_IN_TOML])
def test_a_wrong_value_in_a_task_toml_is_named(split: Builder, toml: str, key: str, words: str) -> None:
    root = split(toml)
    error = error_of(root)
    assert error.file == str(root / "task.toml")
    assert error.key == key
    assert words in error.message


VALUES_IN_DOCUMENT = [
    ("sandbox: {cpus: .nan}", "sandbox.cpus", "finite"),
    ("sandbox: {}\nenvironment: {}", "environment", "both given"),
    ("oracle: {}\nsolution: {}", "solution", "both given"),
    ("name: a\ntask: {name: b/c}", "name", "given too"),
    ("image: a\nsandbox: {docker_image: b}", "image", "given too"),
    ("image: a\nenvironment: {image: b}", "image", "given too"),
    ("verifier: ../elsewhere", "verifier", "inside the task"),
    ("verifier: nowhere/", "verifier", "no directory"),
    ("schema_version: 2.0", "schema_version", "not known"),
    ("agents: {roles: {a: {model: m}}}", "agents.roles.a.agent", "is missing"),
    ("agents: {roles: {a: {agent: x, timeout_sec: true}}}", "agents.roles.a.timeout_sec", "true or false"),
    ("agents: {roles: {a: {agent: x}}}\nscenes: [{turns: [b]}]", "scenes[0].roles", "'b' is not declared"),
    ("scenes: [{roles: [a]}]", "scenes[0].roles", "not declared"),
    ("scenes: [{name: empty}]", "scenes[0]", "names no role"),
    ("scenes: 3", "scenes", "not 3"),
    (
        "agents: {roles: {a: {agent: x}, b: {agent: x}}}\nscenes: [{roles: [a], turns: [b]}]",
        "scenes[0].turns",
        "not in the scene's roles",
    ),
    ("agents: {roles: {a: {agent: x}}}\nscenes: [{name: s}, {name: s}]", "scenes", "two scenes"),
    ("user: {stop_rule: whenever}", "user.stop_rule", "rounds"),
    ("user: {private_facts: 3}", "user.private_facts", "not 3"),
    ("benchflow: 3", "benchflow", "not 3"),
    ("benchflow: {prompt: {composition: mix}}", "benchflow.prompt.composition", "'mix'"),
    ("benchflow: {prompt: {order: base}}", "benchflow.prompt.order", "list"),
    ("benchflow: {nudges: 3}", "benchflow.nudges", "mapping"),
    ("benchflow: {environment: {manifest: 3}}", "benchflow.environment.manifest", "path"),
    ("benchflow: {compat_extra: 3}", "benchflow.compat_extra", "mapping"),
    ("metadata: {x: !!binary aGk=}", "metadata.x", "bytes"),
]


@pytest.mark.parametrize(
    ("frontmatter", "key", "words"), VALUES_IN_DOCUMENT, ids=[case[0] for case in VALUES_IN_DOCUMENT]
)
def test_a_wrong_value_in_a_task_md_is_named(native: Builder, frontmatter: str, key: str, words: str) -> None:
    root = native(frontmatter + "\n")
    error = error_of(root)
    assert error.file == str(root / "task.md")
    assert error.key == key
    assert words in error.message


@pytest.mark.parametrize(
    ("frontmatter", "key", "hint"),
    [
        ("agnet: {timeout_sec: 3}", "agnet", "did you mean `agent`?"),
        ("sandbox: {cpu: 3}", "sandbox.cpu", "did you mean `cpus`?"),
        ("environment: {cpu: 3}", "environment.cpu", "did you mean `cpus`?"),
        ("verifier: {sandbox: {mem_mb: 3}}", "verifier.sandbox.mem_mb", "did you mean `memory_mb`?"),
        ("steps: [{name: a, agent: {timeout: 3}}]", "steps[0].agent.timeout", "did you mean `timeout_sec`?"),
        (
            "agents: {roles: {a: {agent: x, modle: m}}}",
            "agents.roles.a.modle",
            "did you mean `model`?",
        ),
        ("scenes: [{turn: []}]", "scenes[0].turn", "did you mean `turns`?"),
        ("benchflow: {nudges: {budget: 1}}", "benchflow.nudges.budget", "did you mean `nudge_budget`?"),
        ("benchflow: {environment: {manifst: x}}", "benchflow.environment.manifst", "did you mean `manifest`?"),
    ],
)
def test_an_unknown_key_in_a_task_md_names_the_nearest(native: Builder, frontmatter: str, key: str, hint: str) -> None:
    root = native(frontmatter + "\n")
    error = error_of(root)
    assert (error.file, error.key, error.remedy) == (str(root / "task.md"), key, hint)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ("No frontmatter.\n", "no frontmatter"),
        ("---\nagent: {}\n", "no frontmatter"),
        ("---\n- a list\n---\nText.\n", "must be a mapping"),
        ("---\nagent: {timeout_sec: [\n---\nText.\n", "line"),
        (
            "---\na: &a [x, x, x, x, x, x, x, x, x]\n"
            + "".join(f"{b}: &{b} [{', '.join(['*' + a] * 9)}]\n" for a, b in pairwise("abcdefg"))
            + "---\nText.\n",
            "counting aliases",
        ),
        ("---\na: &x [*x]\n---\nText.\n", "contains itself"),
        ("---\nagent: {}\nagent: {}\n---\nText.\n", "given twice, in lines 2 and 3"),
        ("---\nsandbox:\n  cpus: 1\n  cpus: 2\n---\nText.\n", "given twice, in lines 3 and 4"),
        ("---\n---\n## prompt\na\n## prompt\nb\n", "`## prompt` is given twice"),
    ],
)
def test_a_document_that_cannot_be_read_says_where(native: Builder, document: str, words: str) -> None:
    root = native(files={"task.md": document})
    error = error_of(root)
    assert error.file == str(root / "task.md")
    assert words in error.message


def test_a_toml_error_names_its_line(split: Builder) -> None:
    error = error_of(split("version = '1.0'\n[agent\n"))
    assert "line 2" in error.message


def test_a_toml_that_is_nested_too_deeply_is_an_error(split: Builder) -> None:
    assert "nested too deeply" in error_of(split("a = " + "[" * 5000 + "]" * 5000)).message


def test_a_key_twice_in_a_toml_is_an_error(split: Builder) -> None:
    assert "is not valid TOML" in error_of(split("[agent]\n[agent]\n")).message


@pytest.mark.parametrize("name", ["task.toml", "instruction.md"])
def test_text_that_is_not_utf8_names_file_and_line(split: Builder, name: str) -> None:
    root = split(files={name: b"# fine\n# caf\xe9\n"})
    error = error_of(root)
    assert error.file == str(root / name)
    assert "line 2" in error.message
    assert error.remedy == "save the file as UTF-8"


@pytest.mark.parametrize(
    ("files", "file", "words"),
    [
        ({"instruction.md": None}, "instruction.md", "missing"),
        ({"environment/Dockerfile": None}, "environment", "not a task"),
        ({"environment/Dockerfile": None, "environment/": ""}, "environment/Dockerfile", "no image"),
        ({"tests/test.sh": None}, "verifier/test.sh", "no verifier"),
        ({"tests/test.sh": None, "tests/check.py": ""}, "tests/test.sh", "no verifier"),
    ],
)
def test_a_missing_part_is_named(split: Builder, files: dict[str, str | None], file: str, words: str) -> None:
    root = split(files=files)
    error = error_of(root)
    assert error.file == str(root / file)
    assert words in error.message
    assert error.remedy


@pytest.mark.parametrize("text", ["", "  \n\n"])
def test_an_empty_instruction_is_an_error(split: Builder, native: Builder, text: str) -> None:
    assert "is empty" in error_of(split(files={"instruction.md": text})).message
    assert "no instruction" in error_of(native("", text)).message


def test_a_prompt_for_an_undeclared_role_is_an_error(native: Builder) -> None:
    error = error_of(native("", "Base.\n\n## role:ghost\n\nBoo.\n"))
    assert "'ghost'" in error.message
    assert error.remedy == "declare it under `agents.roles.ghost`"


def test_a_persona_in_two_places_is_an_error(native: Builder) -> None:
    error = error_of(native("user: {persona: A.}\n", "Base.\n\n## user-persona\n\nB.\n"))
    assert error.key == "user.persona"


def test_a_step_needs_its_instruction_and_a_verifier(split: Builder) -> None:
    root = split("[[steps]]\nname = 'one'", {"tests/test.sh": None, "steps/one/instruction.md": None})
    files = [problem.file for problem in read_task(root).problems if problem.severity == "error"]
    assert files == [str(root / "steps/one/instruction.md"), str(root / "verifier/test.sh")]


def test_two_steps_of_one_name_are_an_error(split: Builder) -> None:
    root = split("[[steps]]\nname = 'a'\n[[steps]]\nname = 'a'", {"steps/a/instruction.md": "Go."})
    error = error_of(root)
    assert (error.key, error.message) == ("steps[1].name", "two steps are called 'a'")


def test_a_step_directory_that_no_step_declares_is_listed(split: Builder) -> None:
    root = split("[[steps]]\nname = 'one'", {"steps/one/instruction.md": "Go.", "steps/two/instruction.md": "Go."})
    assert [problem.file for problem in read_task(root).problems] == [str(root / "steps/two")]


def test_a_script_with_windows_line_ends_is_an_error(split: Builder) -> None:
    error = error_of(split(files={"tests/test.sh": b"#!/bin/bash\r\necho\r\n"}))
    assert "Windows" in error.message


def test_a_script_without_a_shebang_is_a_warning(split: Builder) -> None:
    reading = read_task(split(files={"tests/test.sh": "echo 1\n"}))
    assert [problem.severity for problem in reading.problems] == ["warning"]


@pytest.mark.parametrize("kind", ["missing", "file", "empty"])
def test_a_path_that_is_no_task_directory_says_what_it_is(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "here"
    if kind == "file":
        path.write_text("")
    if kind == "empty":
        path.mkdir()
    error = error_of(path)
    assert error.file == str(path)
    words = {"missing": "does not exist", "file": "is a file", "empty": "neither a task.md nor a task.toml"}
    assert words[kind] in error.message


def test_every_problem_is_reported_and_the_first_error_raised(split: Builder) -> None:
    root = split("[agent]\ntimeout_sec = 0\n[environment]\ncpus = 0\nflavour = 1\n", {"instruction.md": ""})
    reading = read_task(root)
    assert reading.task is None
    assert [(problem.severity, problem.key) for problem in reading.problems] == [
        ("error", None),
        ("warning", "environment.flavour"),
        ("error", "agent.timeout_sec"),
        ("error", "environment.cpus"),
    ]
    assert error_of(root).file == str(root / "instruction.md")


JUNK = [None, True, 0, -1.5, "", "x", "../..", [], [[]], {}, {"x": 1}, "${", "a" * 10_000, "a\0b"]


def label(value: object) -> str:
    return repr(value)[:20]


def paths_in(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where every value of nested data lies."""
    if at:
        yield at
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from paths_in(item, (*at, key))


def with_value(data: Any, at: tuple[Any, ...], value: Any) -> Any:
    changed = copy.deepcopy(data)
    place = changed
    for key in at[:-1]:
        place = place[key]
    place[at[-1]] = value
    return changed


some = pytest.mark.parametrize("share", [8, pytest.param(1, marks=pytest.mark.long)], ids=["an-eighth", "all"])
"""Of the places, each junk comes to so many in every run, and each place gets some of them."""


def places_in(value: Any, junk: Any, share: int) -> Iterator[tuple[Any, ...]]:
    return islice(paths_in(value), JUNK.index(junk) % share, None, share)


@some
@pytest.mark.parametrize("junk", JUNK, ids=label)
def test_no_value_in_any_place_of_a_task_md_breaks_the_reader(native: Builder, junk: Any, share: int) -> None:
    root = native()
    complete = yaml.safe_load(COMPLETE_FRONTMATTER)
    for at in places_in(complete, junk, share):
        text = yaml.safe_dump(with_value(complete, at, junk))
        (root / "task.md").write_text(f"---\n{text}---\n{COMPLETE_BODY}")
        reading = read_task(root)
        assert (reading.task is None) == any(problem.severity == "error" for problem in reading.problems), at


@some
@pytest.mark.parametrize("junk", [value for value in JUNK if value is not None], ids=label)
def test_no_value_in_any_place_of_a_task_toml_breaks_the_reader(split: Builder, junk: Any, share: int) -> None:
    root = split()
    complete = tomllib.loads(COMPLETE_TOML)
    for at in places_in(complete, junk, share):
        (root / "task.toml").write_text(tomlkit.dumps(with_value(complete, at, junk)))
        reading = read_task(root)
        assert (reading.task is None) == any(problem.severity == "error" for problem in reading.problems), at
