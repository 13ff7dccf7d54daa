"""A toolbox on this host: what is in it, that it runs anywhere, and what is said when it cannot be built."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from pydantic import ValidationError
from support.small_agents import agent, node_agent, python_agent

from benchflow.contracts.agent_record import NODE_VERSION, AgentRecord
from benchflow.errors import AgentDownloadError, AgentInstallError, ConfigError
from benchflow.paths import StatePaths
from benchflow.planes.agent.toolbox import (
    PUMP,
    Toolbox,
    ensure_python,
    ensure_runtime,
    ensure_toolbox,
    portable_python,
)
from benchflow.planes.agent.toolbox.portable_python import find_interpreter
from benchflow.planes.agent.toolbox.toolbox_manifest import read_manifest
from benchflow.testing.waiting import until


def said(*argv: str | Path, **env: str) -> str:
    """The output of a command in an all but empty environment."""
    ran = subprocess.run([*map(str, argv)], env={"PATH": "/usr/bin:/bin", **env}, capture_output=True, check=True)
    return ran.stdout.decode()


def test_node_and_the_packages_are_there(node_toolbox: Toolbox) -> None:
    assert said(node_toolbox.root / "bin" / "node", "--version").strip() == "v24.21.0"
    assert node_toolbox.manifest.installed.packages == {"semver": "7.8.5"}
    assert node_toolbox.manifest.installed.runtime == "node 24.21.0"
    assert node_toolbox.manifest.size > 0


def test_a_program_of_a_node_package_runs(node_toolbox: Toolbox) -> None:
    argv = node_toolbox.make_argv(node_agent(), at=str(node_toolbox.root))
    assert said(*argv, "1.2.3", "-i", "minor").strip() == "1.3.0"
    assert said(node_toolbox.root / "bin" / "semver", "1.2.3", "-i").strip() == "1.2.4"


def test_a_program_is_started_at_the_mount_path(node_toolbox: Toolbox) -> None:
    node, program = node_toolbox.make_argv(node_agent())
    assert node == "/opt/benchflow/agents/small-1.0.0/bin/node"
    assert program.startswith("/opt/benchflow/agents/small-1.0.0/lib/node_modules/semver/")
    assert node_toolbox.mount.target == "/opt/benchflow/agents/small-1.0.0"
    assert node_toolbox.mount.read_only


def test_a_toolbox_runs_wherever_it_lies(python_toolbox: Toolbox, node_toolbox: Toolbox, tmp_path: Path) -> None:
    for toolbox, program in ((python_toolbox, "cowsay"), (node_toolbox, "semver")):
        elsewhere = tmp_path / program
        # Other names of the same files: that these are elsewhere is all that matters.
        shutil.copytree(toolbox.root, elsewhere, symlinks=True, copy_function=os.link)
        argv = (
            (elsewhere / "bin" / "cowsay", "-t", "moo")
            if program == "cowsay"
            else (elsewhere / "bin" / "semver", "1.0.0")
        )
        assert {"cowsay": "moo", "semver": "1.0.0"}[program] in said(*argv)


def test_python_and_the_packages_are_there(python_toolbox: Toolbox) -> None:
    assert python_toolbox.manifest.installed.packages == {"cowsay": "6.1"}
    assert "moo" in said(*python_toolbox.make_argv(python_agent(), at=str(python_toolbox.root)))


def test_what_python_starts_is_the_same_python(python_toolbox: Toolbox) -> None:
    inner = "import sys; print(sys.prefix)"
    script = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}], check=True)"
    assert said(python_toolbox.root / "bin" / "python3", "-c", script).strip() == str(python_toolbox.root)


def test_python_takes_every_library_from_the_toolbox(python_toolbox: Toolbox) -> None:
    script = "import ssl, sqlite3, ctypes, hashlib, lzma; print(open('/proc/self/maps').read())"
    maps = said(python_toolbox.root / "bin" / "python3", "-c", script)
    libraries = {line.split()[-1] for line in maps.splitlines() if ".so" in line}
    assert libraries
    assert not [name for name in libraries if not name.startswith(str(python_toolbox.root))]


def test_what_a_task_says_to_python_does_not_reach_the_agent(python_toolbox: Toolbox, tmp_path: Path) -> None:
    (tmp_path / "cowsay.py").write_text("raise SystemExit('the wrong cow')")
    argv = python_toolbox.make_argv(python_agent(), at=str(python_toolbox.root))
    assert "moo" in said(*argv, PYTHONPATH=str(tmp_path), PYTHONHOME="/nonexistent")


def test_python_modules_are_compiled_already(python_toolbox: Toolbox) -> None:
    sources = list((python_toolbox.root / "lib").rglob("cowsay/*.py"))
    assert sources
    for source in sources:
        assert list((source.parent / "__pycache__").glob(f"{source.stem}.*.pyc"))


def test_nobody_can_write_into_a_toolbox(python_toolbox: Toolbox, node_toolbox: Toolbox) -> None:
    for toolbox in (python_toolbox, node_toolbox):
        inside = [path for path in toolbox.root.rglob("*") if not path.is_symlink()]
        assert not [path for path in inside if path.stat().st_mode & 0o222]
        assert not [path for path in inside if not path.stat().st_mode & 0o004]


async def test_another_content_of_the_same_version_is_another_toolbox(node_toolbox: Toolbox, kept: StatePaths) -> None:
    other = await ensure_toolbox(node_agent(prune=["semver/range.bnf"]), kept)
    assert other is not None
    assert other.root != node_toolbox.root
    assert other.mount_path == node_toolbox.mount_path
    assert not (other.root / "lib/node_modules/semver/range.bnf").exists()


async def test_an_agent_that_installs_nothing_has_no_toolbox(kept: StatePaths) -> None:
    assert await ensure_toolbox(agent(version=None), kept) is None


def test_a_launch_may_name_the_toolbox_and_its_node(node_toolbox: Toolbox) -> None:
    argv = node_toolbox.make_argv(agent(launch=["node", "{toolbox}/start.mjs"]), at="/box")
    assert argv == ("/box/bin/node", "/box/start.mjs")


def test_a_launch_that_the_packages_do_not_have_is_named(node_toolbox: Toolbox) -> None:
    with pytest.raises(ConfigError, match="'semvar'") as caught:
        node_toolbox.make_argv(agent(launch=["semvar"]))
    assert "semver" in str(caught.value.remedy)


async def test_a_version_that_does_not_exist_is_named(kept: StatePaths) -> None:
    with pytest.raises(AgentInstallError, match=r"semver 99\.0\.0: there is no such version") as caught:
        await ensure_toolbox(node_agent(packages={"semver": "99.0.0"}), kept)
    assert "ETARGET" in str(caught.value.log_tail)
    assert not caught.value.retryable


@pytest.mark.long
async def test_a_python_package_that_does_not_exist_is_named(kept: StatePaths) -> None:
    with pytest.raises(AgentInstallError, match=r"cowsay 99\.0: there is no such version"):
        await ensure_toolbox(python_agent(packages={"cowsay": "99.0"}), kept)


async def test_a_node_that_does_not_exist_is_named(kept: StatePaths) -> None:
    with pytest.raises(AgentInstallError, match=r"24\.999\.0: there is no such version"):
        await ensure_toolbox(node_agent(node="24.999.0"), kept)


async def test_a_python_that_this_host_lacks_is_named(kept: StatePaths) -> None:
    with pytest.raises(AgentInstallError, match=r"no Python 3\.77") as caught:
        await ensure_toolbox(python_agent(python="3.77"), kept)
    assert "BENCHFLOW_TOOLBOX_PYTHON" in str(caught.value.remedy)


async def test_a_host_whose_python_cannot_be_copied_is_told_what_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portable_python, "_has_argv0", lambda loader: False)
    find_interpreter.cache_clear()
    with pytest.raises(AgentInstallError, match=r"cannot be copied: it needs glibc 2\.33") as caught:
        await ensure_python(StatePaths(tmp_path))
    assert "pip" not in caught.value.message


def script_agent(**scripts: str) -> AgentRecord:
    record = node_agent(packages={}, scripts=scripts)
    return record.model_copy(update={"launch": ("hello",), "source": "small.toml"})


@pytest.fixture
def my_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package with a script."""
    package = tmp_path / "packages" / "my_agent_package"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "hello.mjs").write_text("console.log(`hello ${process.argv[2]}`)\n")
    monkeypatch.syspath_prepend(str(package.parent))
    # The one of the test before lay elsewhere.
    sys.modules.pop("my_agent_package", None)
    return package


async def test_a_script_of_an_installed_package_is_a_program(with_node: StatePaths, my_package: Path) -> None:
    record = script_agent(hello="my_agent_package:hello.mjs")
    toolbox = await ensure_toolbox(record, with_node)
    assert toolbox is not None and toolbox.built
    # A second time nothing is built.
    again = await ensure_toolbox(record, with_node)
    assert again is not None and (again.root, again.built) == (toolbox.root, False)
    assert said(*toolbox.make_argv(record, at=str(toolbox.root)), "Ada") == "hello Ada\n"
    assert said(toolbox.root / "bin" / "hello", "Bob") == "hello Bob\n"
    there = toolbox.mount_path
    assert toolbox.find_program("hello") == (f"{there}/bin/node", f"{there}/lib/scripts/hello.mjs")
    assert not (toolbox.root / "lib/node_modules").exists()


async def test_a_script_of_another_content_is_another_toolbox(kept: StatePaths, my_package: Path) -> None:
    record = script_agent(hello="my_agent_package:hello.mjs")
    first = await ensure_toolbox(record, kept)
    (my_package / "hello.mjs").write_text("console.log('changed')\n")
    second = await ensure_toolbox(record, kept)
    assert first is not None and second is not None
    assert first.root != second.root
    assert said(second.root / "bin" / "hello") == "changed\n"


@pytest.mark.parametrize("resource", ["my_agent_package:bye.mjs", "no_such_package:hello.mjs"])
async def test_a_script_that_no_package_has_is_named(kept: StatePaths, my_package: Path, resource: str) -> None:
    with pytest.raises(ConfigError, match=r"small\.toml: install\.scripts\.hello:"):
        await ensure_toolbox(script_agent(hello=resource), kept)


@pytest.mark.parametrize(
    "scripts", [{"node": "package:a.mjs"}, {"a": "one:a.mjs", "b": "two:a.mjs"}, {"a": "package:../a.mjs"}]
)
def test_scripts_that_cannot_lie_side_by_side_are_refused(scripts: dict[str, str]) -> None:
    with pytest.raises(ValidationError):
        script_agent(**scripts)


async def test_what_holds_the_stdio_is_a_toolbox_of_its_own(kept: StatePaths) -> None:
    runtime = await ensure_runtime(kept)
    assert runtime.mount_path == f"/opt/benchflow/agents/node-{NODE_VERSION}"
    node, pump = runtime.find_program(PUMP)
    assert (node,) == runtime.find_program("node")
    assert said(runtime.root / "bin" / "node", "--version").strip() == f"v{NODE_VERSION}"
    assert (runtime.root / pump.removeprefix(f"{runtime.mount_path}/")).is_file()
    with pytest.raises(ConfigError, match="'npm'"):
        runtime.find_program("npm")


async def test_without_a_network_it_may_be_tried_again(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9/")
    with pytest.raises(AgentDownloadError, match="cannot be reached") as caught:
        await ensure_toolbox(node_agent())
    assert caught.value.retryable
    assert not list((state / "toolboxes").rglob("*.part"))


async def test_npm_uses_the_registry_that_is_configured(kept: StatePaths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9/")
    monkeypatch.setenv("npm_config_fetch_retries", "0")
    with pytest.raises(AgentDownloadError, match=r"installing is-number 7\.0\.0"):
        await ensure_toolbox(node_agent(packages={"is-number": "7.0.0"}, node="24.21.0"), kept)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a small disk")
def test_a_full_disk_is_named(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", disk], check=True)
    try:
        with pytest.raises(AgentInstallError, match="no space is left") as caught:
            asyncio.run(ensure_toolbox(node_agent(), StatePaths(disk)))
        assert "BENCHFLOW_STATE_DIR" in str(caught.value.remedy)
    finally:
        subprocess.run(["umount", disk], check=True)


async def test_a_link_out_of_the_toolbox_is_refused(kept: StatePaths, tmp_path: Path) -> None:
    from benchflow.planes.agent.toolbox.directory import build_once

    async def make(part: Path) -> None:
        (part / "out").symlink_to("/etc/passwd")

    with pytest.raises(AgentInstallError, match="out is a link to /etc/passwd"):
        await build_once(tmp_path / "box", make)
    assert not (tmp_path / "box").exists()


def test_a_directory_that_nobody_built_is_no_toolbox(tmp_path: Path) -> None:
    with pytest.raises(AgentInstallError, match="is not the manifest"):
        read_manifest(tmp_path)


BUILDS = """
import asyncio, sys
from pathlib import Path
from benchflow.paths import StatePaths
from benchflow.planes.agent.toolbox import ensure_toolbox
sys.path.insert(0, sys.argv[2])
from support.small_agents import node_agent
agent = node_agent(packages={"semver": "7.8.5", "is-number": "7.0.0"})
toolbox = asyncio.run(ensure_toolbox(agent, StatePaths(Path(sys.argv[1]))))
print("built" if toolbox.built else "found", toolbox.root)
"""


def build(state: StatePaths, **env: str) -> subprocess.Popen[bytes]:
    tests = Path(__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, "-c", BUILDS, str(state.root), str(tests)],
        env=os.environ | {"PYTHONPATH": str(tests.parent), **env},
        stdout=subprocess.PIPE,
    )


@pytest.fixture
def with_node(kept: StatePaths, node_toolbox: Toolbox, tmp_path: Path) -> StatePaths:
    """A state directory that has Node and npm already, and no toolbox."""
    paths = StatePaths(tmp_path / "state")
    shutil.copytree(kept.toolboxes / "runtimes", paths.toolboxes / "runtimes", copy_function=os.link)
    return paths


def test_two_builders_at_once_build_once(with_node: StatePaths) -> None:
    both = [build(with_node), build(with_node)]
    words = sorted(process.communicate(timeout=300)[0].decode().split()[0] for process in both)
    assert words == ["built", "found"]


@pytest.fixture
def slow_registry() -> Iterator[str]:
    """The address of a registry that takes every request and answers none."""
    import socket

    server = socket.create_server(("127.0.0.1", 0))
    held = []

    def hold() -> None:
        while True:
            try:
                held.append(server.accept()[0])
            except OSError:
                return

    thread = threading.Thread(target=hold)
    thread.start()
    yield f"http://127.0.0.1:{server.getsockname()[1]}/"
    server.shutdown(socket.SHUT_RDWR)
    server.close()
    thread.join()
    for connection in held:
        connection.close()


def test_a_killed_build_leaves_nothing_that_runs_and_the_next_one_sweeps(
    with_node: StatePaths, slow_registry: str, tmp_path: Path
) -> None:
    cache = str(tmp_path / "cache")
    first = build(with_node, npm_config_registry=slow_registry, npm_config_cache=cache)
    working = asyncio.run(until(lambda: _npm_processes(with_node) or first.poll()))
    assert first.poll() is None
    first.kill()
    first.wait()
    assert first.stdout is not None
    first.stdout.close()
    assert not psutil.wait_procs(working, timeout=300)[1]
    (left,) = with_node.toolboxes.glob(".*.part")
    assert not list(with_node.toolboxes.glob("small-*"))
    second = build(with_node)
    assert second.communicate(timeout=300)[0].split()[0] == b"built"
    assert not left.exists()
    assert not list(with_node.toolboxes.glob(".*.part"))


def _npm_processes(state: StatePaths) -> list[psutil.Process]:
    """The processes that work in a half-built toolbox."""
    at_work = [process for process in psutil.process_iter(["cwd"]) if process.info["cwd"]]
    return [process for process in at_work if Path(process.info["cwd"]).is_relative_to(state.toolboxes)]
