"""A toolbox inside a sandbox: at its one path, read-only, as an ordinary user, of an image that has nothing for it."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from support.small_agents import node_agent, python_agent

from benchflow.contracts.images import ImageConfig, ImageRef
from benchflow.contracts.sandbox import Sandbox, SandboxSpec
from benchflow.errors import SandboxError, UnsupportedFeatureError
from benchflow.paths import StatePaths
from benchflow.planes.agent.account import AGENT_UID
from benchflow.planes.agent.registry import find_agent
from benchflow.planes.agent.toolbox import Toolbox, ensure_toolbox, require_runs_in
from benchflow.planes.sandbox.docker import DockerDriver
from benchflow.planes.sandbox.driven.driven_provider import DrivenProvider

pytestmark = pytest.mark.docker

Start = Callable[..., Awaitable[Sandbox]]
Build = Callable[[str], Awaitable[ImageRef]]


@pytest_asyncio.fixture
async def provider(state: Path) -> AsyncIterator[DrivenProvider]:
    made = DrivenProvider(DockerDriver())
    yield made
    await made.close()


@pytest_asyncio.fixture
async def build(provider: DrivenProvider, tmp_path: Path) -> AsyncIterator[Build]:
    """Builds an image of a Dockerfile, which is gone afterwards."""
    made: list[ImageRef] = []

    async def make(dockerfile: str) -> ImageRef:
        made.append(await provider.build(_image(tmp_path, dockerfile)))
        return made[-1]

    yield make
    for image in made:
        await provider.remove_image(image)


@pytest_asyncio.fixture
async def start(provider: DrivenProvider, base_image: str, build: Build) -> AsyncIterator[Start]:
    stack = uuid.uuid4().hex

    async def begin(*toolboxes: Toolbox, image: ImageRef | None = None) -> Sandbox:
        spec = SandboxSpec(
            name=f"benchflow-test-{uuid.uuid4().hex[:12]}",
            image=image or ImageRef(reference=base_image),
            labels={"benchflow.stack": stack},
            network_mode="no-network",
            mounts=tuple(toolbox.mount for toolbox in toolboxes),
        )
        return await provider.start(spec, host_id="host", queue="queue")

    yield begin
    for owned in await provider.owned(stack):
        await provider.remove(owned.name)
    await provider.sweep(stack)


async def test_programs_run_as_an_ordinary_user_and_not_even_root_can_change_them(
    start: Start, build: Build, node_toolbox: Toolbox, python_toolbox: Toolbox, base_image: str
) -> None:
    gone = "/usr/bin/python3* /usr/lib/python3* /usr/lib/*/libssl* /usr/lib/*/libcrypto* /usr/lib/*/libsqlite3*"
    image = await build(f"FROM {base_image}\nRUN rm -rf {gone}\n")
    sandbox = await start(node_toolbox, python_toolbox, image=image)
    # Nothing of what they need is the image's.
    assert (await sandbox.exec(["sh", "-c", "command -v node npm python3"])).stdout == ""
    for toolbox, argv, says in (
        (node_toolbox, [*node_toolbox.make_argv(node_agent()), "1.2.3", "-i"], "1.2.4"),
        (python_toolbox, python_toolbox.make_argv(python_agent()), "moo"),
        (python_toolbox, [f"{python_toolbox.mount_path}/bin/python3", "-c", "import ssl, sqlite3; print(1)"], "1"),
    ):
        await require_runs_in(sandbox, toolbox)
        ran = await sandbox.exec(argv, user=AGENT_UID, cwd="/tmp")
        assert (ran.return_code, says in ran.stdout) == (0, True), ran
        ran = await sandbox.exec(["touch", f"{toolbox.mount_path}/bin/mine"])
        assert "Read-only file system" in ran.stderr


@pytest.mark.long
async def test_an_image_with_musl_is_refused_by_name(
    start: Start, build: Build, node_toolbox: Toolbox, base_image: str, tmp_path: Path
) -> None:
    # What an image with musl looks like from inside: its loader is there, and ours is not found.
    image = await build(f"FROM {base_image}\nRUN touch /lib/ld-musl-x86_64.so.1\n")
    foreign = _with_loader(node_toolbox, tmp_path / "box", "/lib64/not-there.so.2")
    sandbox = await start(foreign, image=image)
    with pytest.raises(UnsupportedFeatureError, match="musl") as caught:
        await require_runs_in(sandbox, foreign)
    assert "glibc" in str(caught.value.remedy)


async def test_a_sandbox_that_does_not_mount_it_is_told_so(start: Start, node_toolbox: Toolbox) -> None:
    sandbox = await start()
    with pytest.raises(SandboxError, match="does not run at"):
        await require_runs_in(sandbox, node_toolbox)


@pytest.mark.long
@pytest.mark.agents
@pytest.mark.parametrize("name", ["claude", "codex", "opencode", "gemini", "pi", "openhands", "openclaw"])
async def test_a_real_agent_initializes_in_an_image_without_its_runtime(
    start: Start, kept: StatePaths, name: str
) -> None:
    record = find_agent(name)
    toolbox = await ensure_toolbox(record, kept)
    assert toolbox is not None
    sandbox = await start(toolbox)
    await require_runs_in(sandbox, toolbox)
    request: dict[str, Any] = {"protocolVersion": 1, "clientCapabilities": {}}
    line = json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": request})
    await sandbox.write_file("/tmp/in", line + "\n", mode=0o644)
    # Its input stays open until it has answered; some agents want a pipe for their output, too.
    script = """
    mkdir /tmp/home
    { cat /tmp/in; sleep 600; } | "$@" 2> /tmp/err | cat > /tmp/out &
    until grep -q result /tmp/out; do sleep 0.1; done
    """
    argv = toolbox.make_argv(record)
    ran = await sandbox.exec(
        ["sh", "-c", script, "sh", *argv], user=AGENT_UID, cwd="/tmp", env={"HOME": "/tmp/home"}, timeout=300
    )
    assert ran.return_code == 0, (await sandbox.read_bytes("/tmp/err"))[-2000:]
    lines = (await sandbox.read_bytes("/tmp/out")).splitlines()
    (answer,) = [message for message in map(json.loads, lines) if message.get("id") == 0]
    assert answer["result"]["agentInfo"]["version"] == record.version


def _image(context: Path, dockerfile: str) -> ImageConfig:
    directory = context / "image"
    directory.mkdir()
    (directory / "Dockerfile").write_text(dockerfile)
    return ImageConfig(context=str(directory), dockerfile=str(directory / "Dockerfile"), digest=uuid.uuid4().hex)


def _with_loader(toolbox: Toolbox, target: Path, loader: str) -> Toolbox:
    """A copy of a toolbox whose Node asks for another loader."""
    shutil.copytree(toolbox.root, target, symlinks=True)
    node = target / "bin" / "node"
    content = node.read_bytes()
    ours = next(name for name in (b"/lib64/ld-linux-x86-64.so.2", b"/lib/ld-linux-aarch64.so.1") if name in content)
    node.chmod(0o755)
    node.unlink()
    node.write_bytes(content.replace(ours, loader.encode().ljust(len(ours), b"\0")))
    node.chmod(0o755)
    return Toolbox(target, toolbox.mount_path, toolbox.manifest)
