"""The Python that an image without one gets, by a mount or in a layer of its own."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest
from support.musl_image import musl_image

from benchflow.contracts.environment import Manifest
from benchflow.contracts.images import ImageConfig
from benchflow.contracts.sandbox import SandboxSpec
from benchflow.contracts.sandbox_provider import Capabilities
from benchflow.paths import StatePaths
from benchflow.planes.agent.toolbox import PYTHON
from benchflow.planes.environment.observing import observe
from benchflow.planes.environment.world_setup import prepare_world
from benchflow.planes.environment.world_state import SqliteStore
from benchflow.planes.environment.writing import TABLE, Writer
from benchflow.planes.sandbox.docker import DockerDriver
from benchflow.planes.sandbox.driven.driven_provider import DrivenProvider

COUNT = f"import sqlite3, sys; print(*sqlite3.connect(sys.argv[1]).execute('SELECT count(*) FROM {TABLE}').fetchone())"

pytestmark = [pytest.mark.docker, pytest.mark.long]


class MountsNothing(DrivenProvider):
    """Docker as with a daemon elsewhere."""

    def capabilities(self) -> Capabilities:
        return super().capabilities().model_copy(update={"mounts": False})


@pytest.mark.parametrize(
    ("made", "step"), [(DrivenProvider, "true"), (MountsNothing, "rm /lib/ld-musl-*")], ids=["musl", "no libc"]
)
async def test_the_helper_works_in_an_image_with_musl_or_without_any_libc(
    state: Path, kept: StatePaths, tmp_path: Path, made: type[DrivenProvider], step: str
) -> None:
    provider, stack = made(DockerDriver()), uuid.uuid4().hex
    with musl_image(tmp_path / "image") as base:
        (tmp_path / "Dockerfile").write_text(f"FROM {base}\nRUN {step}\n")
        config = ImageConfig(context=str(tmp_path), exclude=("*",), digest=uuid.uuid4().hex)
        image = await provider.build(config)
        spec = SandboxSpec(
            name=f"benchflow-test-{uuid.uuid4().hex[:12]}",
            image=image,
            labels={"benchflow.stack": stack},
            network_mode="no-network",
        )
        try:
            manifest = Manifest(name="desk", image="desk:1", owns_lifecycle=False)
            spec, setup = await prepare_world(manifest, spec, provider, task="t", paths=kept)
            assert setup.python == PYTHON
            assert (spec.image == image) == provider.capabilities().mounts == bool(spec.mounts)
            sandbox = await provider.start(spec, host_id="host", queue="queue")
            helper, writer, path = setup.make_helper(sandbox), Writer(setup.python), "/data/a.db"
            await sandbox.control("mkdir /data")
            await writer.insert(sandbox, path)
            taken = await SqliteStore(helper).snapshot("one", [path])
            await writer.insert(sandbox, path)
            await SqliteStore(helper).restore(taken, live=False)
            counted = await sandbox.exec([setup.python, "-I", "-c", COUNT, path])
            assert counted.stdout == "1\n", counted.stderr
            assert await helper.ports_in_use([9001]) == {}
            (seen,) = await observe(helper, ["https://localhost:9001"])
            assert seen.error == "connection refused"
        finally:
            await provider.remove(spec.name)
            await provider.sweep(stack)
            for each in {spec.image.reference: spec.image, image.reference: image}.values():
                await provider.remove_image(each)
            await provider.close()
