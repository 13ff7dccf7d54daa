"""What a container begins with, where an agent that was root has worked in its files before."""

from __future__ import annotations

import asyncio

import pytest

pytestmark = pytest.mark.docker

LEFT_SHELL = '#!/bin/bash\necho "shell $PPID" >>/left\nexec /bin/dash "$@"\n'
LEFT_SLEEP = '#!/bin/bash\necho "sleep $PPID" >>/left\nexec tail -f /dev/null\n'


@pytest.mark.snapshots
async def test_no_program_that_an_agent_left_is_the_first_process_or_its_child(sandbox, start, provider, daemon):
    for path, program in (("/usr/bin/sleep", LEFT_SLEEP), ("/bin/sh", LEFT_SHELL)):
        await sandbox.write_outside(path, program.encode())
    await sandbox.write_outside("/etc/ld.so.preload", b"/no/such/library.so\n", mode=0o644)
    image = await sandbox.snapshot("left")
    (forked,) = await sandbox.fork([f"{sandbox.ref.name}-fork"])
    branched = await start(name=f"{sandbox.ref.name}-branch", image=image)
    await sandbox.restore(image)
    for each in (await provider.attach(forked), branched, sandbox):
        (container,) = await asyncio.to_thread(daemon.containers.list, filters={"name": f"^/{each.ref.name}$"})
        top = await asyncio.to_thread(container.top, ps_args="-o pid,comm,args")
        assert [row[1] for row in top["Processes"]][:2] == ["docker-init", "idle"]
        assert "/no/such/library.so" not in container.logs().decode()
        said = (await each.read_outside("/left") or b"").decode().splitlines()
        assert not [line for line in said if line.endswith(" 1")]
        assert not [line for line in said if line.startswith("sleep")]
    await provider.remove_image(image)
