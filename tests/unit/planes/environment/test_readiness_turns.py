"""Waiting until a world is healthy: what is probed, for how long at a time, and what is told of it."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from benchflow.contracts.environment import Manifest, ProbeAnswer, Service
from benchflow.errors import ReadinessError
from benchflow.planes.environment import world_readiness
from benchflow.planes.environment.world_helper import ProbeResult
from benchflow.planes.environment.world_readiness import list_targets

PORT = 9101


def notes(name: str = "notes", port: int = PORT, **fields: str) -> Service:
    return Service.model_validate({"name": name, "command": "notes", "port": port} | fields)


def manifest(**fields: object) -> Manifest:
    return Manifest.model_validate({"name": "world", "image": "image"} | fields)


def test_without_urls_those_of_the_started_services_are_probed() -> None:
    started = [notes(), notes("more", 9102, health_path="/up?deep=1")]
    found = list_targets(manifest(readiness={"tcp": [5, 6]}), started)
    assert found.names == (
        f"http://localhost:{PORT}/health",
        "http://localhost:9102/up?deep=1",
        "tcp://localhost:5",
        "tcp://localhost:6",
    )


def test_urls_of_the_manifest_stand_for_those_of_the_services() -> None:
    found = list_targets(manifest(readiness={"http": ["http://localhost:1/a"] * 2}), [notes()])
    assert found.names == ("http://localhost:1/a",)


class Scripted:
    """A helper whose probes meet these, one a turn, and the last one for ever. now: its clock. turns: their length."""

    def __init__(self, *met: str) -> None:
        self.met = [*met]
        self.now = 0.0
        self.turns: list[float] = []

    async def probe(self, *, http: Sequence[str], deadline: float, **_: object) -> ProbeResult:
        self.now += deadline
        self.turns.append(deadline)
        met = self.met.pop(0) if len(self.met) > 1 else self.met[0]
        return ProbeResult((ProbeAnswer(target=http[0], healthy=False, answer=met),))


@pytest.mark.parametrize(
    ("met", "limit", "told", "turns"),
    [
        (["HTTP 503", "timed out"], 4.0, "HTTP 503", [2.0, 2.0]),
        (["HTTP 503", "HTTP 503", "was not tried"], 4.03, "HTTP 503", [2.0, 2.0, 0.05]),
        (["was not tried", "timed out", "was not tried"], 5.0, "timed out", [2.0, 2.0, 1.0]),
        (["timed out", "connection refused"], 4.0, "connection refused", [2.0, 2.0]),
        # In a long turn there is a whole try.
        (["HTTP 503", "timed out"], 18.0, "timed out", [2.0, 2.0, 12.0, 2.0]),
        (["HTTP 503", "timed out", "HTTP 500"], 18.0, "HTTP 500", [2.0, 2.0, 12.0, 2.0]),
    ],
)
async def test_what_is_told_of_a_target_is_the_last_that_was_heard(
    met: list[str], limit: float, told: str, turns: list[float]
) -> None:
    helper = Scripted(*met)

    async def nothing() -> None: ...

    async def logs() -> dict[str, str]:
        return {}

    with pytest.raises(ReadinessError) as caught:
        await world_readiness.wait_until_healthy(
            helper,  # type: ignore[arg-type]
            world_readiness.Targets(("http://localhost:1/",), ()),
            limit,
            exits=(),
            look=nothing,
            logs=logs,
            clock=lambda: helper.now,
        )
    assert caught.value.log_tail == f"http://localhost:1/: {told}"
    assert helper.turns == pytest.approx(turns)
