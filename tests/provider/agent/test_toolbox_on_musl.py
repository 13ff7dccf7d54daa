"""Toolboxes in an image that has musl: which libc an image has, and that agents answer there."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from support.acp_room import CWD, PATIENT, USER, Room
from support.musl_image import musl_image
from support.small_agents import node_agent, python_agent

from benchflow.contracts.agent_record import AgentRecord
from benchflow.contracts.images import ImageConfig, ImageRef
from benchflow.contracts.sandbox import SandboxSpec
from benchflow.errors import AgentInstallError, SandboxStartError, UnsupportedFeatureError
from benchflow.paths import StatePaths
from benchflow.planes.agent.account import find_account
from benchflow.planes.agent.acp.agent_process import make_run_mount
from benchflow.planes.agent.acp.wire import Wire
from benchflow.planes.agent.notes import SessionFiles
from benchflow.planes.agent.registry import find_agent
from benchflow.planes.agent.toolbox import PUMP, Toolbox, ensure_runtime, ensure_toolbox, find_libc, require_runs_in
from benchflow.planes.agent.toolbox.musl import MUSL_NODE_VERSION
from benchflow.planes.sandbox.docker import DockerDriver
from benchflow.planes.sandbox.driven.driven_provider import DrivenProvider
from benchflow.planes.sandbox.local.local_driver import LocalDriver

pytestmark = [pytest.mark.docker, pytest.mark.long]


@pytest.fixture(scope="module")
def alpine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImageRef]:
    with musl_image(tmp_path_factory.mktemp("musl") / "image") as reference:
        yield ImageRef(reference=reference)


@pytest.fixture
def stack() -> str:
    return uuid.uuid4().hex


@pytest_asyncio.fixture
async def provider(request: pytest.FixtureRequest, state: Path, stack: str) -> AsyncIterator[DrivenProvider]:
    made = DrivenProvider(getattr(request, "param", DockerDriver)())
    yield made
    for owned in await made.owned(stack):
        await made.remove(owned.name)
    await made.sweep(stack)
    await made.close()


async def start(provider: DrivenProvider, stack: str, image: ImageRef, wire: Wire, *toolboxes: Toolbox) -> Room:
    spec = SandboxSpec(
        name=f"benchflow-test-{uuid.uuid4().hex[:12]}",
        image=image,
        labels={"benchflow.stack": stack},
        network_mode="no-network",
        mounts=(make_run_mount(wire.files), *(toolbox.mount for toolbox in toolboxes)),
    )
    sandbox = await provider.start(spec, host_id="host", queue="queue")
    await sandbox.control('mkdir -p "$1" /tmp/home && chown "$2" "$1" /tmp/home', CWD, USER)
    return Room(sandbox, wire, toolboxes[0].find_program(PUMP) if toolboxes else ())


@pytest.fixture
def wire(tmp_path: Path) -> Wire:
    made = Wire(SessionFiles.from_directory(tmp_path / "agent"))
    made.make()
    return made


# --- which libc an image has -----------------------------------------------------------------------------


async def test_an_image_is_asked_once(
    provider: DrivenProvider, base_image: str, tmp_path: Path, stack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    image, paths, labels = ImageRef(reference=base_image), StatePaths(tmp_path), {"benchflow.stack": stack}
    assert await find_libc(provider, image, paths, labels=labels) == "glibc"
    assert await provider.owned(stack) == []
    # Where nothing can be started the answer is what was kept.
    monkeypatch.setenv("DOCKER_HOST", "tcp://127.0.0.1:9")
    assert await find_libc(DrivenProvider(DockerDriver()), image, paths, labels=labels) == "glibc"


async def test_an_image_that_does_not_start_leaves_nothing(
    provider: DrivenProvider, tmp_path: Path, stack: str
) -> None:
    with pytest.raises(SandboxStartError):
        await find_libc(
            provider, ImageRef(reference="not:here"), StatePaths(tmp_path), labels={"benchflow.stack": stack}
        )
    assert await provider.owned(stack) == []
    assert not (tmp_path / "toolboxes" / "libc.json").exists()


# --- what runs there -------------------------------------------------------------------------------------


@pytest.mark.parametrize("provider", [DockerDriver, pytest.param(LocalDriver, marks=pytest.mark.local)], indirect=True)
async def test_an_image_with_musl_is_known_and_what_is_built_for_it_runs(
    provider: DrivenProvider,
    alpine: ImageRef,
    kept: StatePaths,
    python_toolbox: Toolbox,
    wire: Wire,
    stack: str,
    tmp_path: Path,
) -> None:
    image = await provider.build(ImageConfig(image=alpine.reference))
    assert await find_libc(provider, image, StatePaths(tmp_path), labels={"benchflow.stack": stack}) == "musl"
    runtime = await ensure_runtime(kept, "musl")
    node = await ensure_toolbox(node_agent(), kept, "musl")
    python = await ensure_toolbox(python_agent(), kept, "musl")
    # The one for Python brings its own libc, and is the same for all images.
    assert node is not None and python is not None and python.root == python_toolbox.root
    room = await start(provider, stack, image, wire, runtime, node, python)
    for argv, says in (
        ([*runtime.find_program("node"), "--version"], f"v{MUSL_NODE_VERSION}"),
        ([*node.make_argv(node_agent()), "1.2.3", "-i"], "1.2.4"),
        (python.make_argv(python_agent()), "moo"),
    ):
        ran = await room.sandbox.exec(argv, user=USER, cwd="/tmp")
        assert says in ran.stdout, ran.stderr
    for toolbox in (runtime, node, python):
        await require_runs_in(room.sandbox, toolbox)


async def test_a_toolbox_for_glibc_is_refused_by_name(
    provider: DrivenProvider, alpine: ImageRef, runtime: Toolbox, wire: Wire, stack: str
) -> None:
    room = await start(provider, stack, alpine, wire, runtime)
    with pytest.raises(UnsupportedFeatureError, match="glibc"):
        await require_runs_in(room.sandbox, runtime)


async def test_a_package_that_musl_has_none_of_is_named(kept: StatePaths) -> None:
    with pytest.raises(AgentInstallError, match=r"no-such-package-of-ours-musl 1\.0\.0: there is no such version"):
        await ensure_toolbox(node_agent(packages={"no-such-package-of-ours{libc}": "1.0.0"}), kept, "musl")


def version_with_musl(record: AgentRecord) -> AgentRecord:
    """Of a program whose build for musl may come a little after the others: one that surely has it."""
    if record.name != "opencode" or record.install is None:
        return record
    packages = dict.fromkeys(record.install.packages, "1.18.32")
    return record.model_copy(
        update={"version": "1.18.32", "install": record.install.model_copy(update={"packages": packages})}
    )


@pytest.mark.agents
@pytest.mark.parametrize("name", ["opencode", "codex", "claude", "gemini", "pi", "openhands"])
async def test_a_real_agent_initializes_through_the_pump(
    provider: DrivenProvider, alpine: ImageRef, kept: StatePaths, wire: Wire, stack: str, name: str
) -> None:
    record = version_with_musl(find_agent(name))
    runtime, toolbox = await ensure_runtime(kept, "musl"), await ensure_toolbox(record, kept, "musl")
    assert toolbox is not None
    room = await start(provider, stack, alpine, wire, runtime, toolbox)
    await require_runs_in(room.sandbox, toolbox)
    account = await find_account(room.sandbox, USER)
    env = {variable: str(value) for variable, value in record.env.items() if "{" not in str(value)}
    await room.process.start(
        room.pump, toolbox.make_argv(record), env={"HOME": "/tmp/home", **env}, cwd=CWD, account=account
    )
    asked = {"protocolVersion": 1, "clientCapabilities": {}}
    answer = await room.session().call("initialize", "initialize", asked, PATIENT)
    assert answer["agentInfo"]["version"] == record.version, json.dumps(answer)
    await room.process.kill()
