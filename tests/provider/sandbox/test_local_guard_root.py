"""What root of a local sandbox cannot do to this machine, and cannot make it believe."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import socket
import stat
from pathlib import Path

import pytest
from support.local_probes import ATTEMPTS, DOORS, KERNEL_FILES, LIAR, LIARS, RAMPAGE
from support.local_sandboxes import AGENT, EVERYBODY, OverTheHost, tried

from benchflow.contracts.sandbox import Sandbox
from benchflow.planes.sandbox.local.helper.kernel import CAPABILITIES
from benchflow.planes.sandbox.local.machine import Machine
from benchflow.testing.sandbox_conformance.sandbox_fixtures import Start, leave, nap, napping

pytestmark = pytest.mark.local

REFUSED = {errno.EPERM, errno.EACCES, errno.EROFS}
MISSING = {errno.ENOSYS, errno.ENOENT, errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT}
"""What a kernel answers that was built without it, or is to be taken for such a one."""


def state_of(path: Path) -> tuple[object, ...]:
    """A file of this host as it is, content included; of a directory whose it is."""
    status = path.lstat()
    whose = (status.st_mode, status.st_uid, status.st_gid, sorted(os.listxattr(path)))
    if stat.S_ISDIR(status.st_mode):
        return whose
    content = hashlib.sha256(path.read_bytes()).hexdigest()
    return (*whose, status.st_nlink, status.st_ino, status.st_mtime_ns, content)


class TestRootOfASandbox(OverTheHost):
    @EVERYBODY
    async def test_gains_no_right_over_the_kernel(self, sandbox: Sandbox, user: int | None) -> None:
        said: dict[str, int] = await tried(sandbox, ATTEMPTS, user=user)
        assert len(said) > 100
        refused = REFUSED | MISSING
        done = {name: errno.errorcode.get(answer, answer) for name, answer in said.items() if answer not in refused}
        assert done == {}
        assert socket.gethostname() != "changed"

    async def test_has_the_capabilities_of_a_container_and_no_way_to_more(self, sandbox: Sandbox) -> None:
        said = await sandbox.exec(["grep", "-E", "^Cap", "/proc/self/status"])
        rows = [line.split() for line in said.stdout.splitlines()]
        kept = f"{sum(1 << number for number in CAPABILITIES.values()):016x}"
        none = f"{0:016x}"
        ambient = {"CapInh": none, "CapAmb": none}
        assert {name.rstrip(":"): value for name, value in rows} == ambient | dict.fromkeys(
            ("CapPrm", "CapEff", "CapBnd"), kept
        )
        said = await sandbox.exec(["grep", "-E", "^Cap", "/proc/1/status"])
        assert [line.split()[1] for line in said.stdout.splitlines()] == [none] * 5

    async def test_is_filtered_whichever_way_it_came_in(self, own: Sandbox, start: Start) -> None:
        show = ["grep", "-hE", "^(NoNewPrivs|Seccomp):", "/proc/self/status", "/proc/1/status"]
        (child,) = await own.fork([f"benchflow-test-{nap()}"])
        image = await own.snapshot(f"kept-{nap()}")
        await own.restore(image)
        said = [
            (await each.exec(show)).stdout for each in (own, await start(name=child.name), await start(image=image))
        ]
        said += [(await own.exec(show, user=AGENT, cwd="/")).stdout, (await own.exec_once("once", show)).stdout]
        said.append(
            b"".join([chunk.data async for chunk in own.exec_stream(show) if chunk.stream == "stdout"]).decode()
        )
        said.append((await own.control('"$@"', *show)).stdout)
        assert [" ".join(each.split()) for each in said] == ["NoNewPrivs: 1 Seccomp: 2 NoNewPrivs: 1 Seccomp: 2"] * 7

    async def test_leaves_no_program_that_becomes_the_first_process_of_a_fork(self, own: Sandbox, start: Start) -> None:
        left = "#!/bin/sh\necho here >/left\nexec tail -f /dev/null\n"
        await own.write_file("/usr/bin/sleep", left, mode=0o755)
        await own.write_file("/etc/ld.so.preload", "/no/such/library.so")
        (child,) = await own.fork([f"benchflow-test-{nap()}"])
        image = await own.snapshot(f"kept-{nap()}")
        await own.restore(image)
        for each in (own, await start(name=child.name)):
            said = await each.exec(["sh", "-c", "echo /left*; cat /proc/1/comm"])
            assert said.stdout.splitlines()[0] == "/left*"
            assert said.stdout.splitlines()[1] not in ("sleep", "tail", "sh")

    async def test_has_nothing_of_this_hosts_in_its_streams(self, sandbox: Sandbox) -> None:
        null = Path("/dev/null").stat()
        script = "import json, os; own = os.fstat(0); os.utime(0, (1, 1)); print(json.dumps([own.st_dev, own.st_rdev]))"
        device, kind = await tried(sandbox, script)
        assert kind == null.st_rdev and device != null.st_dev
        assert Path("/dev/null").stat().st_mtime_ns == null.st_mtime_ns

    async def test_gets_through_no_door_while_commands_come_in(self, own: Sandbox, tmp_path: Path) -> None:
        looking = asyncio.create_task(tried(own, DOORS, "/stop"))
        for number in range(12):
            await asyncio.gather(own.exec(["true"]), own.exec_once(f"n{number}", ["true"]))
        await own.write_file("/stop", "")
        found, looked = await looking
        assert found == []
        assert looked > 5

    async def test_can_write_to_no_file_of_the_kernels(self, sandbox: Sandbox) -> None:
        assert await tried(sandbox, KERNEL_FILES) == []

    async def test_finds_no_device_but_the_harmless_ones(self, sandbox: Sandbox) -> None:
        said = await sandbox.exec(["find", "/dev", "/run", "/tmp", "-type", "b", "-o", "-type", "c"])
        names = {"null", "zero", "full", "random", "urandom", "tty", "pts/ptmx"}
        assert set(said.stdout.split()) <= {f"/dev/{name}" for name in names} | {f"/dev/pts/{n}" for n in range(10)}

    async def test_does_not_get_out_of_its_root(self, sandbox: Sandbox, tmp_path: Path) -> None:
        (tmp_path / "secret").write_text("of the host")
        script = r"""
import json, os, sys
inside = os.open("/", os.O_RDONLY)
os.makedirs("/jail", exist_ok=True)
os.chroot("/jail")
os.fchdir(inside)
for _ in range(64):
    os.chdir("..")
os.chroot(".")
found = [way for way in ("", "/proc/1/root", "/proc/1/cwd") if os.path.exists(way + sys.argv[1])]
print(json.dumps([found, os.path.exists("/jail")]))
"""
        assert await tried(sandbox, script, str(tmp_path / "secret")) == [[], True]

    async def test_set_uid_programs_gain_nothing(self, sandbox: Sandbox) -> None:
        make = 'for mode in 4755 2755 6755; do install -m $mode "$(command -v id)" /id-$mode; done; stat -c %a /id-*'
        assert (await sandbox.exec(["sh", "-c", make])).stdout.split() == ["2755", "4755", "6755"]
        for mode in ("4755", "2755", "6755"):
            said = await sandbox.exec(["sh", "-c", f"/id-{mode} -u; /id-{mode} -g"], user=f"{AGENT}:{AGENT}", cwd="/")
            assert said.stdout.split() == [str(AGENT), str(AGENT)]

    async def test_ends_no_process_but_the_sandboxs(self, own: Sandbox) -> None:
        length = nap()
        process = await asyncio.create_subprocess_exec("sleep", length)
        script = (
            "import json, os, signal, sys\n"
            "said = []\n"
            "for pid in (int(sys.argv[1]), 1, -1):\n"
            "    try:\n"
            "        os.kill(pid, signal.SIGKILL)\n"
            "    except OSError as error:\n"
            "        said.append(error.errno)\n"
            "try:\n"
            "    os.pidfd_open(int(sys.argv[1]))\n"
            "except OSError as error:\n"
            "    said.append(error.errno)\n"
            "print(json.dumps(said))\n"
        )
        try:
            await leave(own, nap())
            await tried(own, script, str(process.pid))
            assert process.returncode is None and Path(f"/proc/{process.pid}").exists()
            # Its own first process cannot be ended from within either.
            assert (await own.exec(["echo", "alive"])).stdout == "alive\n"
        finally:
            process.kill()
            await process.wait()

    async def test_changes_no_file_of_this_host(self, own: Sandbox) -> None:
        files = [
            Path(path).resolve() for path in ("/etc/nsswitch.conf", "/etc/ld.so.conf", "/usr/bin/env", "/usr/bin/id")
        ]
        directories = [*{file.parent for file in files}, Path("/"), Path("/usr")]
        before = [state_of(path) for path in (*files, *directories)]
        names = {path for file in files for path in file.parent.iterdir()}
        assert await tried(own, RAMPAGE, *map(str, files)) == ["added"]
        for _ in range(2):
            assert [state_of(path) for path in (*files, *directories)] == before
            assert [path for path in names if not os.path.lexists(path)] == []
            assert [directory for directory in directories if (directory / "added").exists()] == []
            await own.stop()


class TestWhatIsReadFromTheHostsSide(OverTheHost):
    async def test_files_are_true_whatever_programs_the_agent_put_in_place(self, own: Sandbox, tmp_path: Path) -> None:
        await own.write_file("/logs/verifier/reward.txt", "0\n")
        (tmp_path / "checks").mkdir()
        (tmp_path / "checks" / "test.sh").write_text("true\n")
        assert (await own.exec(["python3", "-c", LIARS, LIAR])).return_code == 0
        assert (await own.exec(["cat", "/logs/verifier/reward.txt"])).stdout == "1\n"
        assert (await own.exec(["python3", "-c", "raise SystemExit(3)"])).stdout == "1\n"
        await own.write_file("/etc/ld.so.preload", "/no/such/library.so")
        assert await own.read_bytes("/logs/verifier/reward.txt") == b"0\n"
        assert await own.download("/logs/verifier", tmp_path / "got")
        assert (tmp_path / "got" / "reward.txt").read_text() == "0\n"
        await own.write_file("/logs/verifier/more", b"\0true", mode=0o640)
        await own.upload(tmp_path / "checks", "/tests")
        assert await own.read_bytes("/logs/verifier/more") == b"\0true"
        assert await own.read_bytes("/tests/test.sh") == b"true\n"
        assert await own.kill_processes(keep="nothing") == 0

    async def test_a_link_laid_in_place_of_a_reward_leads_nowhere_on_this_host(
        self, own: Sandbox, tmp_path: Path
    ) -> None:
        (tmp_path / "one").write_text("1")
        await own.exec(["sh", "-c", 'ln -s "$1" /logs/verifier/reward.txt', "sh", str(tmp_path / "one")])
        with pytest.raises(FileNotFoundError):
            await own.read_bytes("/logs/verifier/reward.txt")
        await own.download("/logs/verifier", tmp_path / "got")
        assert not (tmp_path / "got" / "reward.txt").exists()
        # What is written under the link's name takes its place.
        await own.write_file("/logs/verifier/reward.txt", "0")
        assert (tmp_path / "one").read_text() == "1"

    async def test_a_link_does_not_lead_into_the_process_that_reads(self, sandbox: Sandbox, room: str) -> None:
        for name in ("environ", "cmdline", "maps", "fd/0"):
            await sandbox.exec(["ln", "-sfT", f"/proc/self/{name}", f"{room}/reward"])
            with pytest.raises(FileNotFoundError):
                await sandbox.read_bytes(f"{room}/reward")

    async def test_a_link_shows_no_more_of_the_kernels_than_root_inside_may_see(
        self, sandbox: Sandbox, room: str
    ) -> None:
        assert any(line.strip("0- :").split(" : ")[0] for line in Path("/proc/iomem").read_text().splitlines())
        await sandbox.exec(["ln", "-sfT", "/proc/iomem", f"{room}/reward"])
        shown = (await sandbox.read_bytes(f"{room}/reward")).decode()
        assert {line.split(" : ")[0].strip() for line in shown.splitlines()} == {"00000000-00000000"}

    async def test_output_lies_where_nobody_else_of_this_host_gets(self, own: Sandbox, state_directory: Path) -> None:
        await own.exec_once("set", ["python3", "-c", "import os; os.write(1, b'x'); os.fchmod(1, 0o6777)"])
        (output,) = (state_directory / "local" / "sandboxes" / own.ref.name / "exec").glob("*/out")
        assert output.stat().st_mode & stat.S_ISUID
        assert stat.S_IMODE((state_directory / "local").stat().st_mode) == 0o700

    async def test_an_exit_status_cannot_be_forged(self, own: Sandbox) -> None:
        # The agent's root looks for whoever could tell how a command ended, and writes to all it finds.
        agent = r"""
import os, sys
while True:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for fd in (*range(3, 64), 200):
            way = f"/proc/{pid}/fd/{fd}"
            try:
                # Pipes, and files that are not the sandbox's own.
                if not os.path.exists(os.readlink(way)):
                    os.write(os.open(way, os.O_WRONLY | os.O_NONBLOCK), b"0\n")
            except OSError:
                pass
"""
        await own.exec(["sh", "-c", 'python3 -c "$1" >/dev/null 2>&1 &', "sh", agent])
        for _ in range(20):
            assert (await own.exec(["sh", "-c", "exit 3"])).return_code == 3
        assert (await own.exec_once("failed", ["sh", "-c", "sleep 0.2; exit 4"])).return_code == 4
        killed = asyncio.create_task(own.exec(["sleep", length := nap()]))
        while not await napping(own, length):
            await asyncio.sleep(0.02)
        await own.exec(["pkill", "-f", f"^sleep {length}"])
        assert (await killed).return_code == 128 + 15

    async def test_a_command_has_no_handle_but_its_streams(self, sandbox: Sandbox) -> None:
        script = (
            "import json, os; print(json.dumps([os.listdir('/proc/self/fd'), os.listdir('/proc/1/fd'), os.getppid()]))"
        )
        own, first, parent = await tried(sandbox, script)
        assert own[:3] == ["0", "1", "2"] and len(own) == 4
        assert first == ["0", "1", "2"]
        # Who waits for it is not inside.
        assert parent == 0


class TestLimits(OverTheHost):
    async def test_memory_file_systems_count_as_memory(self, start: Start) -> None:
        sandbox = await start(memory_mb=96)
        if any("memory" in warning for warning in sandbox.ref.warnings):
            pytest.skip(f"cannot be enforced on this host: {sandbox.ref.warnings}")
        fill = ["dd", "if=/dev/zero", "of=/dev/shm/fill", "bs=1M", "count=300"]
        assert (await sandbox.exec(fill)).return_code == 137
        # The engine's own commands are not the task's to starve.
        await sandbox.control("rm -f /dev/shm/fill")
        assert (await sandbox.exec(["echo", "alive"])).stdout == "alive\n"

    async def test_the_share_of_processors_is_set_or_its_lack_recorded(self, start: Start) -> None:
        sandbox = await start(cpus=0.5)
        if any("CPU" in warning for warning in sandbox.ref.warnings):
            return
        groups = Machine().cgroups
        older = groups.v1("cpu")
        own = sandbox.ref.name
        if (file := groups.v2 / own / "cpu.max").exists():
            assert file.read_text().split() == ["50000", "100000"]
        else:
            assert older is not None and (older / own / "cpu.cfs_quota_us").read_text() == "50000\n"
            in_it = (older / own / "cgroup.procs").read_text().split()
            assert str(Machine().init_of(own)[0]) in in_it

    async def test_no_limit_can_be_raised_from_within(self, start: Start) -> None:
        sandbox = await start(memory_mb=96, cpus=1)
        said = await sandbox.exec(["sh", "-c", "find / -xdev -name 'cgroup.procs' 2>/dev/null; ls -A /sys/fs/cgroup"])
        assert said.stdout == ""
