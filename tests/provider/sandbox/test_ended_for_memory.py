"""A sandbox whose first process the kernel killed for want of memory says so, to whoever comes to it later."""

from __future__ import annotations

import os
import uuid

import pytest
from support.local_sandboxes import OverTheHost

from benchflow.contracts.images import ImageConfig
from benchflow.errors import SandboxLostError, SandboxMemoryError
from benchflow.planes.sandbox.docker import DockerDriver
from benchflow.planes.sandbox.driven.driven_provider import DrivenProvider
from benchflow.planes.sandbox.local.machine import Machine
from benchflow.testing.sandbox_conformance.border_tests import HOG
from benchflow.testing.sandbox_conformance.sandbox_fixtures import Start
from benchflow.testing.waiting import until


@pytest.mark.docker
async def test_a_container_whose_entrypoint_was_killed_for_memory(start, provider, tmp_path, base_image):
    (tmp_path / "hog.py").write_text("x = b''\nwhile True:\n    x += b'x' * 2**20\n")
    begins = "CMD sleep 2; exec python3 /hog.py"
    steps = f"FROM {base_image}\nENV NONCE={uuid.uuid4().hex}\nCOPY hog.py /\n{begins}\n"
    (tmp_path / "Dockerfile").write_text(steps)
    image = await provider.build(ImageConfig(context=str(tmp_path), entrypoint=True))
    try:
        sandbox = await start(image=image, entrypoint="first", memory_mb=64)
        other = DrivenProvider(DockerDriver())

        async def ended():
            return not (await provider.entrypoint_state(sandbox.ref.name)).running

        await until(ended)
        with pytest.raises(SandboxMemoryError, match=r"at its memory limit \(limit 64 MiB\)") as caught:
            await other.attach(sandbox.ref)
        assert caught.value.category == "sandbox_memory"
        with pytest.raises(SandboxLostError):
            await sandbox.exec(["true"])
        use = await sandbox.memory_use()
        assert use is not None and (use.kills, use.limit_mb) == (1, 64)
        await other.close()
        await provider.remove(sandbox.ref.name)
    finally:
        await provider.remove_image(image)


@pytest.mark.local
class TestLocal(OverTheHost):
    @pytest.mark.parametrize("is_hungry", [True, False])
    async def test_a_sandbox_that_ended_after_a_kill_for_memory(self, start: Start, is_hungry: bool) -> None:
        sandbox = await start(memory_mb=96)
        if any("memory" in warning for warning in sandbox.ref.warnings):
            pytest.skip(f"cannot be enforced on this host: {sandbox.ref.warnings}")
        if is_hungry:
            await sandbox.exec(HOG)
        machine = Machine()
        os.kill(machine.init_of(sandbox.ref.name)[0], 9)

        async def ended() -> bool:
            return machine.running(sandbox.ref.name) is None

        await until(ended)
        with pytest.raises(SandboxLostError) as caught:
            machine.init_of(sandbox.ref.name, sandbox.ref.handle)
        assert caught.value.category == ("sandbox_memory" if is_hungry else "sandbox_lost")
        use = await sandbox.memory_use()
        assert use is not None and use.kills == is_hungry
