"""The agents that there are: ours, the user's files, installed packages, import paths; and what is wrong with one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchflow.contracts.agent_record import AgentRecord
from benchflow.errors import ConfigError
from benchflow.planes.agent.registry import find_agent, load_agents

ACP = ["claude-agent-acp", "codex-acp", "gemini", "openclaw", "opencode", "openhands", "pi-acp"]
MINE = 'name = "mine"\ndescription = "My own."\nprotocol = "acp"\nlaunch = ["mine", "acp"]\n'

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write an agent's file into the user's directory."""
    directory = tmp_path / "agents"
    directory.mkdir()
    monkeypatch.setenv("BENCHFLOW_AGENTS_DIR", str(directory))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))

    def write(text: str, name: str = "mine.toml", where: Path = directory) -> Path:
        where.mkdir(parents=True, exist_ok=True)
        (where / name).write_text(text)
        return where / name

    return write


@pytest.mark.parametrize("name", ACP)
def test_an_agent_of_ours_says_all_that_a_session_needs(name: str) -> None:
    record = find_agent(name)
    assert record.protocol == "acp"
    assert record.version and record.install is not None and record.install.packages
    assert record.model is not None
    assert record.home_dirs
    assert record.skills
    assert record.checked
    assert record.mount_path == f"/opt/benchflow/agents/{name}-{record.version}"
    for endpoint in record.endpoints:
        assert endpoint.credentials


def test_agents_have_aliases() -> None:
    assert find_agent("claude").name == "claude-agent-acp"
    assert find_agent("codex").name == "codex-acp"
    assert find_agent("oh").name == "openhands"
    assert find_agent("pi").name == "pi-acp"


def test_no_two_agents_answer_to_one_name() -> None:
    names = [name for record in load_agents().values() for name in (record.name, *record.aliases)]
    assert len(names) == len(set(names))


def test_a_file_of_the_user_is_an_agent(write: Write) -> None:
    file = write(MINE)
    assert find_agent("mine").source == str(file)


def test_the_user_may_replace_an_agent_of_ours(write: Write) -> None:
    write(MINE.replace('"mine"\n', '"opencode"\n', 1))
    assert find_agent("opencode").description == "My own."


def test_the_named_directory_comes_before_the_one_in_the_configuration(write: Write, tmp_path: Path) -> None:
    write(MINE.replace("My own.", "Of the configuration."), where=tmp_path / "config" / "benchflow" / "agents")
    assert find_agent("mine").description == "Of the configuration."
    write(MINE)
    assert find_agent("mine").description == "My own."


def test_a_name_of_the_engine_cannot_be_taken(write: Write) -> None:
    file = write(MINE.replace('"mine"\n', '"oracle"\n', 1))
    with pytest.raises(ConfigError) as caught:
        find_agent("nop")
    assert (caught.value.file, caught.value.key) == (str(file), "name")


def test_an_agent_of_the_users_own_speaks_acp(write: Write) -> None:
    write(MINE.replace('"acp"\n', '"oracle"\n', 1))
    with pytest.raises(ConfigError, match="engine") as caught:
        find_agent("mine")
    assert caught.value.key == "protocol"


def test_two_files_of_one_name_in_one_directory_are_an_error(write: Write) -> None:
    write(MINE)
    write(MINE, "other.toml")
    with pytest.raises(ConfigError, match=r"mine\.toml"):
        find_agent("mine")


@pytest.mark.parametrize(
    ("change", "key", "remedy"),
    [
        (("launch =", "lanch ="), "lanch", "did you mean `launch`?"),
        (("[install]", "[instal]"), "instal", "did you mean `install`?"),
        (("packages =", "package ="), "install.package", "did you mean `packages`?"),
        (('"1.2.3"', '"^1.2.3"'), "install.packages.thing", "change '^1.2.3'"),
        (('runtime = "node"', 'runtime = "ruby"'), "install.runtime", "known here: node, python"),
        (('version = "1.0.0"\n', ""), None, None),
        (('name = "mine"', 'name = "My Agent"'), "name", "change 'My Agent'"),
        (('description = "My own."\n', ""), "description", "add `description`"),
        (('[".mine"]', '["/root/.mine"]'), "home_dirs[0]", "change '/root/.mine'"),
        (('[".mine"]', '["../.mine"]'), "home_dirs[0]", "change '../.mine'"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(
    write: Write, change: tuple[str, str], key: str | None, remedy: str | None
) -> None:
    text = MINE + 'version = "1.0.0"\nhome_dirs = [".mine"]\n'
    text += '[install]\nruntime = "node"\npackages = { thing = "1.2.3" }\n'
    write(text)
    assert find_agent("mine").version == "1.0.0"
    file = write(text.replace(*change))
    with pytest.raises(ConfigError) as caught:
        find_agent("mine")
    assert (caught.value.file, caught.value.key) == (str(file), key)
    if remedy:
        assert caught.value.remedy == remedy


def test_a_file_that_is_not_toml_is_named(write: Write) -> None:
    file = write("name = \n")
    with pytest.raises(ConfigError, match="is not valid TOML") as caught:
        load_agents()
    assert caught.value.file == str(file)


def test_a_key_may_not_be_written_into_a_file(write: Write) -> None:
    write(
        MINE + '[[endpoints]]\napi = "openai-chat"\nproviders = ["openai"]\n[[endpoints.files]]\n'
        'path = ".mine/settings.json"\nformat = "json"\ncontent = { key = "{api_key}" }\n'
    )
    with pytest.raises(ConfigError, match="snapshots"):
        find_agent("mine")


OBJECTS = """
from benchflow.contracts.agent_record import AgentRecord

TABLE = {"name": "mine", "description": "A table.", "protocol": "acp", "launch": ("mine",)}
RECORD = AgentRecord(**TABLE)

class Mine:
    def agent_record(self):
        return RECORD

def made():
    return TABLE

def broken():
    raise RuntimeError("no luck")

class Group:
    inner = RECORD
"""


@pytest.fixture
def objects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a module of a user's package."""
    (tmp_path / "my_agents.py").write_text(OBJECTS)
    monkeypatch.syspath_prepend(tmp_path)
    return "my_agents"


@pytest.mark.parametrize("attribute", ["RECORD", "TABLE", "Mine", "made", "Group.inner"])
def test_an_import_path_gives_an_agent(objects: str, attribute: str) -> None:
    record = find_agent(f"{objects}:{attribute}")
    assert isinstance(record, AgentRecord)
    assert (record.name, record.source) == ("mine", f"{objects}:{attribute}")


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("my_agents:nothing", "cannot be imported"),
        ("no_such_package:thing", "cannot be imported"),
        ("my agents:thing", "is not an import path"),
        ("my_agents:broken", "RuntimeError: no luck"),
        ("my_agents:OBJECTS", "cannot be imported"),
    ],
)
def test_an_import_path_that_gives_none_is_named(objects: str, path: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        find_agent(path)
    assert caught.value.key == "agent"
    assert caught.value.remedy


def test_an_installed_package_brings_agents(tmp_path: Path, objects: str) -> None:
    # Installed while this process runs, and has looked already.
    assert "mine" not in load_agents()
    info = tmp_path / "my_agents-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: my-agents\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[benchflow.agents]\nmine = {objects}:Mine\n")
    assert find_agent("mine").source == f"{objects}:Mine"
