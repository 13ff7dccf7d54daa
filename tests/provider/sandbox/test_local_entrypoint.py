"""What only local sandboxes do with an image's entrypoint: it runs below, and begins anew below each first process."""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from support.local_sandboxes import OverTheHost

from benchflow.contracts.images import ImageConfig, ImageRef
from benchflow.contracts.sandbox import Sandbox, SandboxSpec
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.errors import SandboxLostError, SandboxStartError
from benchflow.testing.sandbox_conformance.sandbox_fixtures import Keep, Start, asleep, nap, napping
from benchflow.testing.waiting import until

pytestmark = pytest.mark.local

Begin = Callable[..., Awaitable[Sandbox]]
CANARY = "canary-5b2e"


class TestEntrypoint(OverTheHost):
    @pytest.fixture
    def begin(
        self,
        provider: SandboxProvider,
        spec: SandboxSpec,
        start: Start,
        discard: list[ImageRef],
        class_stack: str,
        tmp_path: Path,
    ) -> Begin:
        """Return a function that starts a sandbox of an image with these steps, and its entrypoint.

        `start` removes the sandbox, `class_stack` what the sandboxes shared.
        """

        async def begin(*steps: str, secrets: dict[str, str] | None = None, **wanted: Any) -> Sandbox:
            if steps:
                root = tmp_path / uuid.uuid4().hex
                root.mkdir()
                (root / "Dockerfile").write_text("\n".join(["FROM base", *steps]) + "\n")
                wanted["image"] = await provider.build(ImageConfig(context=str(root), entrypoint=True))
                discard.append(wanted["image"])
            fields = {"name": f"benchflow-test-{uuid.uuid4().hex[:12]}", "entrypoint": "first"} | wanted
            return await provider.start(spec.model_copy(update=fields), host_id="host", queue="queue", secrets=secrets)

        return begin

    async def test_the_sandbox_outlives_its_entrypoint_and_keeps_its_own_first_process(
        self, begin: Begin, provider: SandboxProvider
    ) -> None:
        sandbox = await begin("CMD echo $$ >/pid; exit 3")

        async def ended() -> bool:
            return not (await provider.entrypoint_state(sandbox.ref.name)).running

        await until(ended)
        assert (await provider.entrypoint_state(sandbox.ref.name)).exit_code == 3
        assert await sandbox.read_bytes("/pid") != b"1\n"
        assert (await sandbox.exec(["echo", "here"])).stdout == "here\n"
        await sandbox.stop()
        with pytest.raises(SandboxLostError):
            await provider.entrypoint_state(sandbox.ref.name)

    async def test_secrets_are_in_no_record_and_in_no_file_of_the_sandbox(
        self, begin: Begin, keep: Keep, state_directory: Path
    ) -> None:
        length = nap()
        sandbox = await begin(f"CMD exec sleep {length}", secrets={"SECRET": CANARY})
        await asleep(sandbox, length)
        said = await sandbox.exec(["sh", "-c", f"tr '\\0' '\\n' </proc/$(pgrep -xf 'sleep {length}')/environ"])
        assert f"SECRET={CANARY}" in said.stdout.splitlines()
        await keep(sandbox)
        records = [file for file in state_directory.rglob("*") if file.is_file() and file.name != "store.img"]
        assert len(records) > 5
        assert not [file for file in records if CANARY.encode() in file.read_bytes()]

    async def test_a_restored_sandbox_begins_its_entrypoint_when_it_is_started_again(
        self, begin: Begin, keep: Keep, provider: SandboxProvider
    ) -> None:
        length = nap()
        sandbox = await begin(f"CMD echo $SECRET >>/begun; exec sleep {length}", secrets={"SECRET": "one"})
        await asleep(sandbox, length)
        image = await keep(sandbox)
        await sandbox.restore(image)
        assert await napping(sandbox, length) == []
        assert not (await provider.entrypoint_state(sandbox.ref.name)).running
        for _ in range(2):
            await begin(name=sandbox.ref.name, image=image, secrets={"SECRET": "two"})
        await asleep(sandbox, length)
        assert await sandbox.read_bytes("/begun") == b"one\ntwo\n"

    async def test_a_fork_begins_its_entrypoint_when_it_is_started_by_its_name(
        self, begin: Begin, provider: SandboxProvider
    ) -> None:
        length = nap()
        steps = f"CMD echo $SECRET >>/begun; exec sleep {length}"
        parent = await begin(steps, secrets={"SECRET": "one"})
        await asleep(parent, length)
        [ref] = await parent.fork([f"{parent.ref.name}-f"])
        child = await provider.attach(ref)
        assert await napping(child, length) == []
        await begin(steps, name=ref.name, secrets={"SECRET": "two"})
        await asleep(child, length)
        assert await child.read_bytes("/begun") == b"one\ntwo\n"
        assert await parent.read_bytes("/begun") == b"one\n"

    async def test_a_user_that_is_not_there_is_named_and_nothing_is_left(
        self, begin: Begin, provider: SandboxProvider, stack: str
    ) -> None:
        with pytest.raises(SandboxStartError, match="no-such-user") as caught:
            await begin("USER no-such-user", "CMD true")
        assert caught.value.remedy
        assert await provider.owned(stack) == []

    async def test_the_bare_host_has_no_entrypoint(self, begin: Begin) -> None:
        with pytest.raises(SandboxStartError, match="neither ENTRYPOINT nor CMD"):
            await begin()

    async def test_what_it_uses_counts_against_the_sandboxs_limits(
        self, begin: Begin, provider: SandboxProvider
    ) -> None:
        hog = "x = bytearray(512 << 20); print(len(x))"
        sandbox = await begin(f"CMD exec python3 -c '{hog}'", memory_mb=96)
        if any("memory_mb" in warning for warning in sandbox.ref.warnings):
            pytest.skip("this host keeps no memory limit")

        async def ended() -> bool:
            return not (await provider.entrypoint_state(sandbox.ref.name)).running

        await until(ended)
        assert (await provider.entrypoint_state(sandbox.ref.name)).exit_code == 137
