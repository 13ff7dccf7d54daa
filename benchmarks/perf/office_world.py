"""How long the office takes from the start of its services until it is ready, against the slowest of them alone.

Used by `state.py`. Each measurement has a fresh sandbox of a task's own image.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import uuid
from pathlib import Path

from benchflow.contracts.base import ArtifactRef
from benchflow.contracts.environment import Manifest, StateTable
from benchflow.contracts.images import ImageRef
from benchflow.hosting.blueprint import Blueprint
from benchflow.jobs.job_worlds import IMAGE, TaskWorld
from benchflow.planes.environment.environment_manifest import read_manifest
from benchflow.planes.environment.exports import WorldContext
from benchflow.planes.environment.manifest_environment import ManifestEnvironment
from benchflow.planes.environment.world_setup import prepare_world
from benchflow.planes.sandbox import close_providers, get_provider
from benchflow.tasks import load_task

OFFICE = Path(__file__).parents[1] / "office"
TASK = OFFICE / "tasks" / "archive-newsletters"
STACK = "perf-office"
"""Value of `benchflow.stack` on these sandboxes, which no worker has."""


class Office:
    """The office in sandboxes of one kind."""

    def __init__(self, kind: str) -> None:
        source = OFFICE / "environment.toml"
        self._manifest = read_manifest(source)
        self._provider = get_provider(kind)
        # The image is read where it lies; a job would pack it first.
        unpacked = ArtifactRef(uri=(OFFICE / IMAGE).as_uri(), sha256="0" * 64, size=0)

        async def unpack(_: ArtifactRef) -> Path:
            return OFFICE / IMAGE

        self._blueprint = Blueprint(
            task=load_task(TASK, has_manifest=True),
            directory=TASK,
            external=None,
            environment=TaskWorld(self._manifest, source).ref(unpacked),
            frozen=unpack,
            provider=self._provider,
            hidden=(str(TASK),),
        )
        self._image: ImageRef | None = None

    async def seconds(self, manifest: Manifest, *, probed: bool) -> float:
        """From the start of the services until all are healthy. probed: it is known that the image has them."""
        if self._image is None:
            self._image = await self._blueprint.prepare_image()
        name = f"perf-{uuid.uuid4().hex[:12]}"
        wanted = self._blueprint.make_spec(name, self._image, {"benchflow.stack": STACK})
        wanted, setup = await prepare_world(manifest, wanted, self._provider, task=TASK.name)
        sandbox = await self._provider.start(wanted, host_id="", queue="")
        try:
            world = ManifestEnvironment(
                manifest,
                WorldContext(sandbox, TASK.name, Path(tempfile.gettempdir(), name)),
                self._provider,
                helper=setup.make_helper(sandbox),
                probed={service.name: True for service in manifest.services} if probed else None,
            )
            began = time.perf_counter()
            await world.start()
            await world.readiness()
            return time.perf_counter() - began
        finally:
            await self._provider.remove(name)

    async def measure(self, runs: int, warm_up: int) -> dict[str, float]:
        """Medians, in seconds, in turn with each other; the rounds of the warm-up do not count."""
        whole = self._manifest
        alone = {
            service.name: whole.model_copy(update={"services": (service,), "state": StateTable()})
            for service in whole.services
        }
        found: dict[str, list[float]] = {}
        for _ in range(warm_up + runs):
            found.setdefault("all", []).append(await self.seconds(whole, probed=True))
            found.setdefault("first", []).append(await self.seconds(whole, probed=False))
            for name, manifest in alone.items():
                found.setdefault(name, []).append(await self.seconds(manifest, probed=True))
        await close_providers(STACK)
        medians = {name: statistics.median(values[warm_up:]) for name, values in found.items()}
        slowest = max(medians[name] for name in alone)
        return {
            "provision_to_ready_s": medians["all"],
            "first_provision_to_ready_s": medians["first"],
            "slowest_service_s": slowest,
            "provision_ratio": medians["all"] / slowest,
        }
