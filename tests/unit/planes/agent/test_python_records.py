"""Python code that is an agent: as the registry has it, and as it is made in its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchflow.contracts.agent import AgentPlace, ModelRoute, Unanswered
from benchflow.contracts.job import AgentSpec
from benchflow.errors import AgentExitError, ConfigError, DiskFullError, SandboxLostError, UnsupportedFeatureError
from benchflow.jobs.agents import prepare_agent
from benchflow.planes.agent import attribute_errors, create_agent
from benchflow.planes.agent.function.function_agent import FunctionAgent
from benchflow.planes.agent.registry import find_agent, load_agents

CODE = '''
from benchflow.contracts.agent import RolloutAgent

async def act(turn):
    """Acts.

    In some way.
    """

async def named(turn):
    pass

named.name = "renamed"

async def taken(turn):
    pass

taken.name = "oracle"

def plain(turn):
    pass

class Own(RolloutAgent):
    """One of its own."""

    resume_mode = "load"
    runs_inside = True

    async def open(self, index):
        pass

    async def session(self, held):
        pass

class Holder:
    act = act
'''


@pytest.fixture
def code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The directory of a user's code, in which they are."""
    directory = tmp_path / "code"
    directory.mkdir()
    (directory / "own_code.py").write_text(CODE)
    monkeypatch.chdir(directory)
    monkeypatch.setenv("BENCHFLOW_AGENTS_DIR", str(tmp_path / "none"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "none"))
    return directory


def test_a_function_is_an_agent(code: Path) -> None:
    record = find_agent("own_code:act")
    assert (record.name, record.protocol, record.description) == ("own_code.act", "python", "Acts.")
    assert (record.code, record.code_root, record.runs_inside) == ("own_code:act", str(code), False)
    assert record.session.rung == "load"
    assert find_agent("own_code:Holder.act").name == "own_code.holder.act"
    assert find_agent("own_code:named").name == "renamed"


def test_a_class_of_agents_says_what_it_is(code: Path) -> None:
    record = find_agent("own_code:Own")
    assert (record.description, record.session.rung, record.runs_inside) == ("One of its own.", "load", True)


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("own_code:plain", r"begins with `async def`"),
        ("own_code:taken", "'oracle' belongs to the engine"),
    ],
)
def test_what_is_no_agent_is_refused(code: Path, path: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        find_agent(path)
    assert says in f"{refused.value.message} {refused.value.remedy}"


def test_no_program_of_acpx_drives_code(code: Path) -> None:
    with pytest.raises(UnsupportedFeatureError, match="does not speak the Agent Client Protocol"):
        find_agent("acpx/own_code:act")


def test_an_installed_package_names_its_code(code: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    info = site / "own_package-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "installed_code.py").write_text(CODE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own-package\nVersion: 1.0\n")
    points = "mine = installed_code:act\nother = installed_code:named\nown = installed_code:Own\n"
    (info / "entry_points.txt").write_text(f"[benchflow.agents]\n{points}")
    monkeypatch.syspath_prepend(site)
    found = {name: record for name, record in load_agents().items() if record.protocol == "python"}
    assert {name: record.code for name, record in found.items()} == {
        "mine": "installed_code:act",
        "renamed": "installed_code:named",
        "own": "installed_code:Own",
    }
    # Found by its name alone, wherever the worker is.
    assert find_agent("mine").code_root == ""


def test_no_key_is_asked_for_without_a_model(code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    spec = AgentSpec(name="own_code:act")
    prepared, values = prepare_agent(spec, salt="job", cluster=False)
    assert prepared.record is not None
    assert (prepared.credentials, values, prepared.record.takes_model) == ((), {}, False)
    called, _ = prepare_agent(spec.model_copy(update={"model": "openai/m"}), salt="job", cluster=False)
    assert called.record is not None
    assert (called.credentials, called.record.takes_model) == (("OPENAI_API_KEY",), True)
    with pytest.raises(ConfigError, match="knows no provider 'anthropic'"):
        prepare_agent(spec.model_copy(update={"model": "anthropic/m"}), salt="job", cluster=False)


def place_of(name: str, tmp_path: Path, job: str) -> AgentPlace:
    unused: Any = None
    return AgentPlace(
        record=find_agent(name),
        provider=unused,
        state=tmp_path,
        directory=tmp_path,
        access="none",
        route=ModelRoute,
        run_relay=unused,
        job=job,
    )


def test_code_is_imported_once_for_a_job(code: Path, tmp_path: Path) -> None:
    first, changed = place_of("own_code:act", tmp_path, "job/one"), place_of("own_code:act", tmp_path, "job/two")
    made = create_agent(first)
    assert isinstance(made, FunctionAgent)
    (code / "own_code.py").write_text(CODE.replace("async def act(turn):", "async def act(turn, *more):"))
    again, other = create_agent(first), create_agent(changed)
    assert isinstance(again, FunctionAgent)
    assert isinstance(other, FunctionAgent)
    assert again._act is made._act
    assert other._act is not made._act
    (code / "own_code.py").write_text("")
    with pytest.raises(ConfigError, match="cannot be imported"):
        create_agent(place_of_record(first, "job/three"))


def place_of_record(place: AgentPlace, job: str) -> AgentPlace:
    return AgentPlace(**{**place.__dict__, "job": job})


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (KeyError("x"), AgentExitError),
        (OSError(28, "No space left on device"), DiskFullError),
        (SandboxLostError("gone"), SandboxLostError),
    ],
)
def test_what_an_agent_raises_is_attributed(code: Path, raised: Exception, expected: type[Exception]) -> None:
    with pytest.raises(expected) as found, attribute_errors(find_agent("own_code:act")):
        raise raised
    if expected is AgentExitError:
        assert found.value.__cause__ is raised
        assert "raised KeyError" in str(found.value)


def test_what_is_no_error_passes(code: Path) -> None:
    question: Any = type("Asked", (), {"text": "?"})()
    with pytest.raises(Unanswered), attribute_errors(find_agent("own_code:act")):
        raise Unanswered(question)


def test_an_error_of_the_engines_own_code_stays_what_it_is() -> None:
    with pytest.raises(KeyError), attribute_errors(find_agent("gemini")):
        raise KeyError
