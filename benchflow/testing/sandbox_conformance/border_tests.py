"""Limits of a sandbox, its view of this host, and the places of secrets."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from pathlib import Path

import pytest

from benchflow.contracts.sandbox import Mount, Sandbox
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.testing.sandbox_conformance.sandbox_fixtures import Keep, SandboxFixtures, Start, nap, napping
from benchflow.testing.waiting import until

HOG = ["python3", "-c", "x = b'x' * 300_000_000; print(len(x))"]
"""Command that takes 300 MB of memory."""

THREADS = """
import threading
threading.stack_size(64 * 1024)
over = threading.Event()
n = 0
try:
    while n < 12000:
        threading.Thread(target=over.wait, daemon=True).start()
        n += 1
except RuntimeError:
    pass
print(n, flush=True)
"""
"""Program that starts threads until it can start no more, at most 12,000, and prints their number."""

STAYING = f"{THREADS}over.wait()"
"""`THREADS`, after which it stays."""

LEAVING = f"{THREADS}over.set()\nimport os\nos._exit(0)"
"""`THREADS`, after which it exits."""

STATE_FILE_LIMIT = 16 * 1024 * 1024
"""Bytes above which a file of the state directory is no record: a disk image, which is searched from within."""


async def files_with(sandbox: Sandbox, text: str, since: str) -> list[str]:
    """Return the files on the sandbox's root file system that contain a text and are newer than the file `since`.

    Files of about 32 MiB and more are left out: no file with a secret is so large, and others may be sparse.
    """
    # The text is passed in halves, since the search would find its own arguments, too. Below /usr there are a hundred
    # thousand files that nothing changes.
    half = len(text) // 2
    programs = " -o ".join(f"-path /usr/{name}" for name in ("include", "lib", "share", "src"))
    search = (
        f'find / -xdev \\( {programs} \\) -prune -o -type f -size -32M -cnewer {since} -exec grep -laF "$1$2" {{}} +'
    )
    said = await sandbox.exec(["sh", "-c", search, "sh", text[:half], text[half:]], timeout=600)
    return said.stdout.split()


class LimitTests(SandboxFixtures):
    """Tests of `cpus`, `memory_mb`, `storage_mb`, and the maximum number of processes."""

    async def test_a_command_that_needs_more_memory_than_allowed_is_killed_and_nothing_else(self, start: Start) -> None:
        sandbox = await start(memory_mb=128)
        if any("memory_mb" in warning for warning in sandbox.ref.warnings):
            pytest.skip(f"cannot be enforced on this host: {sandbox.ref.warnings}")
        assert (await sandbox.exec(HOG)).return_code == 137
        assert (await sandbox.exec_once("hog", HOG)).return_code == 137
        use = await sandbox.memory_use()
        # Only drivers with an accelerator have counters.
        assert use is None or (use.kills, use.limit_mb, use.is_own_limit) == (2, 128, True)
        assert (await sandbox.exec(["echo", "alive"])).stdout == "alive\n"
        # The limit is for the sandbox as a whole, not for each command.
        hold = "import time; x = b'x' * 80_000_000; open('/held', 'w').close(); time.sleep(600)"
        await sandbox.exec(
            ["sh", "-c", f'python3 -c "{hold}" >/dev/null 2>&1 & until [ -e /held ]; do sleep 0.05; done']
        )
        result = await sandbox.exec(["sh", "-c", "python3 -c \"x = b'x' * 80_000_000\"; echo $?; pgrep -c python3"])
        assert result.stdout != "0\n1\n"
        assert (await sandbox.exec(["echo", "alive"])).stdout == "alive\n"

    async def test_a_sandbox_cannot_use_up_this_hosts_processes(self, sandbox: Sandbox) -> None:
        said = await sandbox.exec(["python3", "-c", LEAVING], timeout=600)
        assert 500 < int(said.stdout) < 12000
        assert (await sandbox.exec(["echo", "alive"])).stdout == "alive\n"

    async def test_what_has_started_as_many_processes_as_there_can_be_can_be_ended(self, sandbox: Sandbox) -> None:
        fill = ["sh", "-c", 'exec python3 -c "$1" >/filled', "sh", STAYING]
        filling = asyncio.create_task(sandbox.exec_once("fill", fill))
        await until(lambda: self._is_filled(sandbox))
        await sandbox.kill_once("fill")
        assert (await filling).return_code == 137
        leave = 'nohup python3 -c "$1" >/left 2>&1 & until [ -s /left ]; do sleep 0.1; done'
        await sandbox.exec(["sh", "-c", leave, "sh", STAYING])
        assert await sandbox.kill_processes() == 1
        assert (await sandbox.exec(["echo", "alive"])).stdout == "alive\n"

    @staticmethod
    async def _is_filled(sandbox: Sandbox) -> bool:
        """Return whether the program of `fill` has started all its threads."""
        with contextlib.suppress(FileNotFoundError):
            return bool(await sandbox.read_bytes("/filled"))
        return False

    async def test_enough_memory_is_enough_and_a_limit_that_cannot_be_kept_is_a_warning(
        self, start: Start, provider: SandboxProvider
    ) -> None:
        can = provider.capabilities()
        limits = {"cpus": can.cpu_limit, "memory_mb": can.memory_limit, "storage_mb": can.storage_limit}
        sandbox = await start(cpus=1, memory_mb=512, storage_mb=1000)
        assert (await sandbox.exec(HOG)).stdout == "300000000\n"
        for name, kept in limits.items():
            if not kept:
                assert any(name in warning for warning in sandbox.ref.warnings), f"no warning for {name}"


class PrivacyTests(SandboxFixtures):
    """Tests that nothing leaks between a sandbox and this host, in either direction."""

    async def test_this_hosts_files_and_the_engines_environment_are_not_inside(
        self, start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("ENGINES_KEY", f"engines-{nap()}")
        for directory in ("hidden", "other"):
            (tmp_path / directory).mkdir()
            (tmp_path / directory / "oracle").write_text("answer")
        sandbox = await start(hidden=(str(tmp_path / "hidden"),))
        for directory in ("hidden", "other"):
            for user in (None, 4321):
                said = await sandbox.exec(["cat", str(tmp_path / directory / "oracle")], user=user, cwd="/")
                assert said.return_code != 0 and "answer" not in said.stdout
        said = await sandbox.exec(["sh", "-c", "env; cat /proc/[0-9]*/environ"])
        assert "ENGINES_KEY" not in said.stdout

    async def test_the_state_directory_is_not_inside(self, sandbox: Sandbox, state_directory: Path) -> None:
        assert (await sandbox.exec(["ls", "-A", str(state_directory)])).stdout == ""

    async def test_nothing_inside_changes_this_host(self, sandbox: Sandbox, tmp_path: Path) -> None:
        script = 'mkdir -p "$1" && echo x >"$1/written"; echo x >/usr/bin/benchflow-written; rm -rf /etc/hostname; :'
        await sandbox.exec(["sh", "-c", script, "sh", str(tmp_path)])
        assert list(tmp_path.iterdir()) == []
        assert not Path("/usr/bin/benchflow-written").exists()

    async def test_this_hosts_processes_are_not_to_be_seen_or_ended(self, sandbox: Sandbox) -> None:
        length = nap()
        process = await asyncio.create_subprocess_exec("sleep", length)
        assert await napping(sandbox, length) == []
        await sandbox.exec(["sh", "-c", f"kill -9 {process.pid}"])
        await sandbox.kill_processes(keep="nothing")
        assert process.returncode is None
        process.kill()
        await process.wait()

    async def test_a_directory_of_this_host_is_where_it_is_mounted_and_as_it_is_mounted(
        self, start: Start, provider: SandboxProvider, tmp_path: Path
    ) -> None:
        if not provider.capabilities().mounts:
            pytest.skip("this provider mounts nothing")
        for name in ("tool box", "room"):
            (tmp_path / name).mkdir()
            (tmp_path / name / "file").write_text(name)
        mounts = (
            Mount(source=str(tmp_path / "tool box"), target="/opt/tools/tool box"),
            Mount(source=str(tmp_path / "room"), target="/run/room", read_only=False),
        )
        sandbox = await start(mounts=mounts)
        script = (
            "cat '/opt/tools/tool box/file' /run/room/file; echo x >/run/room/made; echo x >'/opt/tools/tool box/made'"
        )
        said = await sandbox.exec(["sh", "-c", script])
        assert said.stdout == "tool boxroom" and said.return_code != 0
        undo = "umount '/opt/tools/tool box' || mount -o remount,bind,rw '/opt/tools/tool box'"
        assert (await sandbox.exec(["sh", "-c", undo])).return_code != 0
        assert (tmp_path / "room" / "made").read_text() == "x\n"
        assert not (tmp_path / "tool box" / "made").exists()

    async def test_an_engines_file_descriptors_stay_with_it(self, sandbox: Sandbox, tmp_path: Path) -> None:
        (tmp_path / "open").write_text("x")
        descriptor = os.open(tmp_path / "open", os.O_RDONLY)
        os.set_inheritable(descriptor, True)
        try:
            said = await sandbox.exec(["sh", "-c", "ls -l /proc/[0-9]*/fd"])
        finally:
            os.close(descriptor)
        assert str(tmp_path) not in said.stdout

    async def test_a_secret_is_in_no_file_of_the_sandbox_its_snapshots_or_the_records(
        self, start: Start, keep: Keep, provider: SandboxProvider, state_directory: Path
    ) -> None:
        secret = secrets.token_hex(16)
        sandbox = await start()
        await sandbox.exec(["touch", "-d", "1 minute ago", "/since"])
        use = ["sh", "-c", 'test -n "$KEY"; sleep 0.2']
        assert (await sandbox.exec(use, env={"KEY": secret}, user="nobody", cwd="/")).return_code == 0
        assert (await sandbox.exec_once("use", use, env={"KEY": secret})).return_code == 0
        assert [c.return_code async for c in sandbox.exec_stream(use, env={"KEY": secret})][-1] == 0
        # A copy has all files of the sandbox. /found shows that the search finds the secret.
        searched = await start(image=await keep(sandbox)) if provider.capabilities().snapshot else sandbox
        await searched.write_file("/found", f"{secret}\n")
        assert await files_with(searched, secret, "/since") == ["/found"]
        await searched.exec(["rm", "/found"])
        records = [path for path in state_directory.rglob("*") if path.is_file() and not path.is_symlink()]
        records = [path for path in records if path.stat().st_size < STATE_FILE_LIMIT]
        assert not [path for path in records if secret.encode() in path.read_bytes()]
