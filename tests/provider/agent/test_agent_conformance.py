"""The conformance suite, over agents of both kinds: a Python function, and a program that speaks ACP."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.acp_room import PROVIDERS
from support.agent_world import BASE_IMAGE, LAUNCH, declare
from support.doc_blocks import write_blocks
from support.local_sandboxes import Economical

from benchflow.contracts.sandbox import Sandbox
from benchflow.paths import StatePaths
from benchflow.planes.agent.toolbox import Toolbox
from benchflow.testing import demo_agent
from benchflow.testing.agent_conformance import AgentConformance

TALKS = [{"run": "date +%N >>marks; wc -l <marks"}, {"think": "so many"}, {"say": "done"}]
SCRIPT = {
    "turns": [
        {"when": "learn", "do": [{"say": "Ann it is"}]},
        {"when": "talk", "do": TALKS},
        {"when": "talk", "do": TALKS},
        {"when": "last", "do": [{"say": "now I wait"}, {"wait_for": "/never"}]},
        {"when": "ask", "do": [{"ask": "may I?"}, {"say": "so it is"}]},
        {"when": "tell", "do": [{"say": "Ann, as I was told"}]},
    ]
}


class Function(AgentConformance):
    agent = "support.python_agents:obedient"
    talks = "talk"
    lasts = "last"
    asks = "ask"
    remembers = ("learn Ann", "tell", "Ann")


@pytest.mark.local
class TestFunctionOnLocal(Economical, Function):
    provider_path = PROVIDERS["local"]


@pytest.mark.docker
@pytest.mark.long
class TestFunctionInDocker(Function):
    provider_path = PROVIDERS["docker"]
    base_image = BASE_IMAGE


class Demo(AgentConformance):
    agent = "demo"
    talks = "talk"
    lasts = "last"
    asks = "ask"
    remembers = ("learn", "tell", "as I was told")

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def declared(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        directory = tmp_path_factory.mktemp("agents")
        declare(directory, session={"rung": "load"})
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("BENCHFLOW_AGENTS_DIR", str(directory))
            yield

    @pytest.fixture(autouse=True)
    def toolboxes(self, state_directory: Path, kept: StatePaths, runtime: Toolbox) -> None:
        """Have the toolboxes that all tests share in the state directory of the class."""
        mine = StatePaths(state_directory).toolboxes
        if not mine.exists():
            mine.parent.mkdir(parents=True, exist_ok=True)
            mine.symlink_to(kept.toolboxes)

    async def furnish(self, sandbox: Sandbox) -> None:
        await sandbox.write_file(LAUNCH[1], Path(demo_agent.__file__).read_bytes())
        await sandbox.write_file(LAUNCH[2], json.dumps(SCRIPT))


@pytest.mark.local
@pytest.mark.long
class TestDemoOnLocal(Economical, Demo):
    provider_path = PROVIDERS["local"]


@pytest.mark.docker
@pytest.mark.long
class TestDemoInDocker(Demo):
    provider_path = PROVIDERS["docker"]
    base_image = BASE_IMAGE


@pytest.mark.local
@pytest.mark.long
class TestCommandOfTheDocs(Economical, AgentConformance):
    """The class that the docs show."""

    provider_path = PROVIDERS["local"]
    agent = "command_agent:CommandAgent"
    talks = "date +%N >>marks; wc -l <marks"
    lasts = "sleep 3600"

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def written(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        directory = tmp_path_factory.mktemp("docs")
        write_blocks("custom-agent.md", directory)
        with contextlib.chdir(directory):
            yield
