"""How long the office takes from the start of its services until it is ready, against the slowest of them alone.

Used by `state.py`. Each measurement has a fresh sandbox of a task's own image.
"""

from __future__ import annotations

import statistics
import time
import uuid
from pathlib import Path

from benchflow.cli.world import OWNER, setting_of
from benchflow.contracts.environment import Manifest, StateTable
from benchflow.contracts.sandbox import SandboxSpec
from benchflow.planes.environment.environment import ManifestEnvironment
from benchflow.planes.environment.outfit import fit_out_world
from benchflow.planes.sandbox import close_providers

OFFICE = Path(__file__).parents[1] / "office"
TASK = OFFICE / "tasks" / "archive-newsletters"


class Office:
    """The office in sandboxes of one kind."""

    def __init__(self, kind: str) -> None:
        self._setting = setting_of(OFFICE / "environment.toml", TASK, kind, ())
        self._provider = self._setting.provider
        self._spec: SandboxSpec | None = None

    async def seconds(self, manifest: Manifest, *, probed: bool) -> float:
        """From the start of the services until all are healthy. probed: it is known that the image has them."""
        if self._spec is None:
            self._spec = self._setting.wanted.model_copy(update={"image": await self._setting.build()})
        name = f"perf-{uuid.uuid4().hex[:12]}"
        wanted = self._spec.model_copy(update={"name": name})
        wanted, outfit = await fit_out_world(manifest, wanted, self._provider, task=TASK.name)
        sandbox = await self._provider.start(wanted, host_id="", queue="")
        try:
            world = ManifestEnvironment(
                manifest,
                sandbox,
                self._provider,
                keeper=outfit.keeper(sandbox),
                task=TASK.name,
                probed={service.name: True for service in manifest.services} if probed else None,
            )
            began = time.perf_counter()
            await world.provision()
            await world.readiness()
            return time.perf_counter() - began
        finally:
            await self._provider.remove(name)

    async def measure(self, runs: int, warm_up: int) -> dict[str, float]:
        """Medians, in seconds, in turn with each other; the rounds of the warm-up do not count."""
        whole = self._setting.manifest
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
        await close_providers(OWNER)
        medians = {name: statistics.median(values[warm_up:]) for name, values in found.items()}
        slowest = max(medians[name] for name in alone)
        return {
            "provision_to_ready_s": medians["all"],
            "first_provision_to_ready_s": medians["first"],
            "slowest_service_s": slowest,
            "provision_ratio": medians["all"] / slowest,
        }
