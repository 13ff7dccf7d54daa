"""Code that is put into processes which stay for the verifier is seen from outside, and what can be ended is."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.verified_sandboxes import InDocker, InLocal, sh

from benchflow.contracts.images import ImageConfig, ImageRef
from benchflow.contracts.sandbox import Sandbox
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.contracts.verifier import HardeningConfig
from benchflow.planes.reward.hardening import harden, take_baseline
from benchflow.testing.sandbox_conformance.sandbox_fixtures import SandboxFixtures, Start, leave, nap, napping

POKE = """
import re, sys
pid, is_undone = sys.argv[1], sys.argv[2:] == ['undone']
for line in open(f'/proc/{pid}/maps'):
    if re.search(r' r-xp .* /', line):
        break
# The end of the last page of code, which holds none.
place = int(line.split()[0].split('-')[1], 16) - 16
with open(f'/proc/{pid}/mem', 'r+b', buffering=0) as memory:
    memory.seek(place)
    held = memory.read(16)
    memory.seek(place)
    memory.write(b'benchflow-tests!')
    if is_undone:
        memory.seek(place)
        memory.write(held)
"""
"""Writes into the code of a process, and takes it back if it is to be undone."""

SELF_MADE = """
import ctypes, mmap, os, time
held = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
open('/made', 'w').close()
while not os.path.exists('/more'): time.sleep(0.01)
more = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
more.write(bytes(4096))
open('/made-more', 'w').close()
time.sleep(900)
"""
"""Makes code as it goes on, as Java and node do."""

FORKING = """
import os, signal, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while not os.path.exists('/fork'): time.sleep(0.01)
os.fork()
open(f'/forked-{os.getpid()}', 'w').close()
time.sleep(900)
"""


async def poke(sandbox: Sandbox, pattern: str, *undone: str) -> None:
    """Write into the code of the process with these arguments, or of a pid."""
    pid = pattern if pattern.isdigit() else f"$(pgrep -xf '{pattern}')"
    await sandbox.write_file("/poke.py", POKE)
    await sh(sandbox, f"python3 /poke.py {pid} {' '.join(undone)}")


async def altered(sandbox: Sandbox) -> list[str]:
    return ["".join(process.command.split()) for process in await sandbox.strangers() if process.is_altered]


class AlteredCode(SandboxFixtures):
    async def test_a_service_that_code_was_put_into_ends(self, still: Sandbox) -> None:
        service, other = nap(), nap()
        await leave(still, service)
        await leave(still, other)
        await still.mark_baseline()
        assert await altered(still) == []
        await poke(still, f"sleep {service}")
        assert await altered(still) == [f"sleep{service}"]
        assert await still.kill_processes() == 1
        assert await altered(still) == []
        assert await napping(still, service, other) == [other]

    async def test_code_that_is_as_in_its_file_again_counts_as_never_changed(self, still: Sandbox) -> None:
        """As a debugger leaves it."""
        service = nap()
        await leave(still, service)
        await still.mark_baseline()
        await poke(still, f"sleep {service}", "undone")
        assert (await altered(still), await still.kill_processes()) == ([], 0)

    async def test_what_a_service_had_changed_of_its_code_before_the_agent_is_its_own(self, still: Sandbox) -> None:
        service = nap()
        await leave(still, service)
        await poke(still, f"sleep {service}")
        await still.mark_baseline()
        assert (await altered(still), await still.kill_processes()) == ([], 0)

    async def test_code_that_a_service_makes_for_itself_is_its_own(self, still: Sandbox) -> None:
        await sh(still, "rm -f /made /more /made-more")
        await still.write_file("/self-made.py", SELF_MADE)
        await sh(still, "python3 /self-made.py >/dev/null 2>&1 & until [ -e /made ]; do sleep 0.01; done")
        await still.mark_baseline()
        await sh(still, "touch /more; until [ -e /made-more ]; do sleep 0.01; done")
        assert (await altered(still), await still.kill_processes()) == ([], 0)

    async def test_forks_of_a_service_that_code_was_put_into_end_too(self, still: Sandbox) -> None:
        await sh(still, "rm -f /fork /forked-*")
        await still.write_file("/forking.py", FORKING)
        await sh(still, "python3 /forking.py >/dev/null 2>&1 &")
        await still.mark_baseline()
        await poke(still, "python3 /forking.py")
        await sh(still, "touch /fork; until [ $(ls /forked-* 2>/dev/null | wc -l) = 2 ]; do sleep 0.01; done")
        assert len(await altered(still)) == 2
        assert await still.kill_processes() == 2


@pytest.mark.local
class TestLocal(InLocal, AlteredCode):
    async def test_nobody_reaches_into_the_first_process(self, own: Sandbox) -> None:
        await own.mark_baseline()
        said = await own.exec(["sh", "-c", "echo x >/proc/1/mem"])
        assert said.return_code != 0 and "denied" in said.stderr


@pytest.mark.docker
class TestDocker(InDocker, AlteredCode):
    async def test_code_in_process_one_is_seen_although_it_cannot_end(self, own: Sandbox) -> None:
        await own.mark_baseline()
        assert await altered(own) == []
        await poke(own, "1")
        assert await altered(own) == ["/dev/benchflow/idle"]
        assert await own.kill_processes() == 0
        report = await harden(own, await take_baseline(own), HardeningConfig())
        assert "/dev/benchflow/idle" in report.unsafe
        assert [finding.action for finding in report.tampering] == ["found"]
        lifted = await harden(own, await take_baseline(own), HardeningConfig(kill_processes=False))
        assert (lifted.unsafe, lifted.findings) == ("", [])

    @pytest.mark.parametrize("moment", ["before the baseline", "after it"])
    async def test_process_one_may_do_nothing_but_wait(self, own: Sandbox, moment: str) -> None:
        """What a program of the agent's did while a restored sandbox began counts as much as what it did later."""
        if moment == "after it":
            await own.mark_baseline()
        await own.write_file("/call.py", CALL)
        await sh(own, "python3 /call.py")
        if moment == "before the baseline":
            await own.mark_baseline()
        assert await altered(own) == ["/dev/benchflow/idle"]

    async def test_the_daemons_init_program_is_looked_through(
        self, provider: SandboxProvider, start: Start, tmp_path: Path, discard: list[ImageRef]
    ) -> None:
        (tmp_path / "Dockerfile").write_text(f'FROM {self.base_image}\nENTRYPOINT ["env"]\n')
        image = await provider.build(ImageConfig(context=str(tmp_path)))
        discard.append(image)
        begun = await start(image=image)
        await begun.mark_baseline()
        assert await altered(begun) == []
        await poke(begun, "1")
        assert len(await altered(begun)) == 1
        assert await begun.kill_processes() == 0

    async def test_what_stands_still_for_a_copy_is_not_taken_for_altered(self, own: Sandbox, start: Start) -> None:
        await own.mark_baseline()
        await own.freeze()
        await own.thaw()
        assert await altered(own) == []
        assert await own.kill_processes() == 0


CALL = """
import ctypes, os, struct
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long] * 4
assert libc.ptrace(16, 1, 0, 0) == 0
os.waitpid(1, 0)
saved = ctypes.create_string_buffer(27 * 8)
libc.ptrace(12, 1, 0, ctypes.addressof(saved))
registers = list(struct.unpack('27Q', saved.raw))
# Where it is, it calls mmap(0, 4096, all rights, private and anonymous), and goes on as before.
registers[15], registers[10], registers[16] = 2**64 - 1, 9, registers[16] - 2
registers[14], registers[13], registers[12], registers[7], registers[9], registers[8] = 0, 4096, 7, 0x22, 2**64 - 1, 0
changed = ctypes.create_string_buffer(struct.pack('27Q', *registers))
libc.ptrace(13, 1, 0, ctypes.addressof(changed))
libc.ptrace(17, 1, 0, 0)
"""
"""Has process one make room for code, and changes nothing of its program."""
