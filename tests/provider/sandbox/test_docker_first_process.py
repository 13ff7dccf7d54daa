"""What a container begins with, where an agent that was root has worked in its files before."""

from __future__ import annotations

import asyncio

import pytest

from benchflow.testing.waiting import until

pytestmark = pytest.mark.docker

LEFT = "#!/bin/bash\necho $0 $PPID >>/left\nexec tail -f /dev/null\n"
LEFT_SHELL = '#!/bin/bash\necho $0 $PPID >>/left\nexec /bin/dash "$@"\n'

# The runtime takes such a link for one place as it mounts, and for another, the working directory, as it executes.
LEAVE = "rm -rf /sbin && ln -s /proc/self/cwd /sbin"


async def test_no_program_that_an_agent_left_is_the_first_process_of_what_begins_with_its_files(
    sandbox, start, provider, daemon
):
    work = sandbox.ref.workdir
    for path in ("/usr/bin/sleep", f"{work}/docker-init"):
        await sandbox.write_file(path, LEFT, mode=0o755)
    assert (await sandbox.control(LEAVE)).return_code == 0
    await sandbox.write_outside("/bin/sh", LEFT_SHELL.encode())
    await sandbox.write_outside("/etc/ld.so.preload", b"/no/such/library.so\n", mode=0o644)
    image = await sandbox.snapshot("left")
    (forked,) = await sandbox.fork([f"{sandbox.ref.name}-fork"])
    await start(name=f"{sandbox.ref.name}-branch", image=image, workdir=work)
    await sandbox.restore(image)
    for name in (forked.name, f"{sandbox.ref.name}-branch", sandbox.ref.name):
        container = daemon.containers.get(name)
        assert container.top()["Processes"][0][-1] == "/dev/benchflow/idle"
        # A shell that enters has another parent, and a loader complains.
        assert " 1\n" not in (await (await provider.attach(forked)).exec(["cat", "/left"])).stdout
        assert container.logs() == b""
    await provider.remove_image(image)


async def test_who_puts_on_a_services_marker_does_not_become_one(sandbox):
    task = asyncio.create_task(sandbox.exec_once("world", ["sh", "-c", "echo $$ >/service; sleep 8642; :"]))
    await until(lambda: sandbox.read_outside("/service"))
    steal = "tr '\\0' '\\n' <\"/proc/$(cat /service)/environ\" | grep ^BENCHFLOW_EXEC="
    await sandbox.exec(["sh", "-c", f"setsid env $({steal}) sleep 7531 >/dev/null 2>&1 &"])
    await until(lambda: _finds(sandbox, 7531))
    await sandbox.mark_baseline("world")
    assert await sandbox.kill_processes() == 1
    assert await _finds(sandbox, 8642) and not await _finds(sandbox, 7531)
    await sandbox.kill_once("world")
    await task


async def _finds(sandbox, number):
    return (await sandbox.control(f"pgrep -xf 'sleep {number}'")).return_code == 0


async def test_what_loses_its_parent_is_reaped(sandbox):
    await sandbox.exec(["sh", "-c", "for n in 1 2 3; do (sleep 0.01 & exec true); done"])

    async def is_reaped():
        # A zombie keeps its name.
        return "(sleep)" not in (await sandbox.control("cat /proc/[0-9]*/stat")).stdout

    assert await until(is_reaped)
