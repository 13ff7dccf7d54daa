"""The suite that every environment must pass: over a manifest's services, and over a service without a manifest."""

from __future__ import annotations

import json

import pytest
from support import board_environment
from support.small_worlds import DATABASE, OnDocker, OnLocal, ask, equip, make_helper, notes

from benchflow.contracts.environment import Manifest, StateTable
from benchflow.contracts.sandbox import Sandbox
from benchflow.contracts.world import EnvironmentContext
from benchflow.errors import StateError
from benchflow.planes.environment.manifest_environment import ManifestEnvironment
from benchflow.planes.sandbox import get_provider
from benchflow.testing.environment_conformance import EnvironmentConformance, Open

MANIFEST = Manifest(
    name="notes",
    base_image="base",
    owns_lifecycle=False,
    services=(notes(),),
    state=StateTable(paths=(DATABASE,), observe=("http://localhost:9101/",)),
)


class Notes(ManifestEnvironment):
    """A manifest's world that is made like any other environment."""

    name = MANIFEST.name

    def __init__(self, context: EnvironmentContext) -> None:
        super().__init__(
            MANIFEST, context, get_provider(context.sandbox.ref.provider), helper=make_helper(context.sandbox)
        )


class OfServices(EnvironmentConformance):
    environment_path = f"{__name__}:Notes"

    async def prepare(self, sandbox: Sandbox) -> None:
        await equip(sandbox)

    async def change(self, sandbox: Sandbox) -> None:
        await ask(sandbox, note="something")


class OfABoard(EnvironmentConformance):
    environment_path = f"{board_environment.__name__}:Board"

    async def change(self, sandbox: Sandbox) -> None:
        code = "import urllib.request as u; u.urlopen('http://127.0.0.1:9107/add', b'something')"
        said = await sandbox.exec(["python3", "-I", "-c", code], cwd="/")
        assert said.return_code == 0, said.stderr

    async def test_what_another_has_put_in_place_of_a_snapshot_is_refused(self, open: Open, place: Sandbox) -> None:
        await open().provision()
        snapshot = await open().snapshot("one")
        await place.write_file(f"{snapshot.directory}/notes.json", json.dumps(["forged"]))
        with pytest.raises(StateError, match="not the one that was taken"):
            await open().restore(snapshot)


@pytest.mark.local
class TestServicesOnLocal(OnLocal, OfServices):
    max_deaths = 2


@pytest.mark.local
class TestBoardOnLocal(OnLocal, OfABoard):
    max_deaths = 2


@pytest.mark.long
@pytest.mark.docker
class TestServicesOnDocker(OnDocker, OfServices):
    pass


@pytest.mark.long
@pytest.mark.docker
class TestBoardOnDocker(OnDocker, OfABoard):
    pass
