"""Waiting until a world is healthy: all of its probes at once, inside the sandbox, under one deadline.

What serves the probes is watched meanwhile, so that a world that has ended is not waited for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from benchflow.contracts.environment import Manifest, ProbeAnswer, Service
from benchflow.errors import ReadinessError
from benchflow.planes.environment.helper.probe import SILENT, TRY, UNTRIED
from benchflow.planes.environment.keeper import Keeper

LOOK_EVERY = 2.0
"""Seconds between two looks at what serves the probes, besides those at the files that tell of an end."""

PATIENT = 12.0
"""The same where an answer takes long, so that it is not always cut short."""

_FIRST_LINES, _LAST_LINES = 5, 10


@dataclass(frozen=True)
class Targets:
    """What must answer. http: URLs as the sandbox sees them; tcp: ports of its localhost."""

    http: tuple[str, ...]
    tcp: tuple[int, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """As the answers call them."""
        return (*self.http, *(f"tcp://localhost:{port}" for port in self.tcp))

    def without(self, done: Mapping[str, ProbeAnswer]) -> Targets:
        """Those of which there is no answer yet."""
        return Targets(
            tuple(url for url in self.http if url not in done),
            tuple(port for port in self.tcp if f"tcp://localhost:{port}" not in done),
        )


def targets_of(manifest: Manifest, started: Sequence[Service]) -> Targets:
    """What the manifest wants probed; without URLs of its own, those of the services that were started."""
    derived = tuple(f"http://localhost:{service.port}{service.health_path}" for service in started)
    return Targets(
        tuple(dict.fromkeys(manifest.readiness.http or derived)), tuple(dict.fromkeys(manifest.readiness.tcp))
    )


async def wait_until_healthy(
    keeper: Keeper,
    targets: Targets,
    timeout_sec: float,
    *,
    exits: Sequence[str],
    look: Callable[[], Awaitable[None]],
    logs: Callable[[], Awaitable[Mapping[str, str]]],
    clock: Callable[[], float],
) -> tuple[ProbeAnswer, ...]:
    """The answer of each target, once all are healthy.

    exits: files of the sandbox that appear when something ends that should run. look: raises if it has; it is also
    asked from time to time, and at the end. logs: for the error. clock: tells the seconds. Raises `ReadinessError` at
    the deadline.
    """
    began = clock()
    done: dict[str, ProbeAnswer] = {}
    last: dict[str, ProbeAnswer] = {}
    watched = tuple(exits)
    slow = False
    while True:
        spent = clock() - began
        left = targets.without(done)
        turn = max(0.05, min(PATIENT if slow else LOOK_EVERY, timeout_sec - spent))
        probed = await keeper.probe(http=left.http, tcp=left.tcp, deadline=turn, exits=watched)
        for answer in probed.answers:
            last[answer.target] = _telling(last.get(answer.target), answer, turn)
            if answer.healthy:
                done[answer.target] = answer.model_copy(update={"seconds": spent + (answer.seconds or 0.0)})
        slow = any(SILENT in answer.answer for answer in probed.answers)
        await look()
        if not targets.without(done).names:
            return tuple(done[name] for name in targets.names)
        if clock() - began >= timeout_sec:
            raise await _gave_up(targets, timeout_sec, last, logs)
        # Whoever has looked at it knows why it is no reason to give up: it is not waited for again.
        watched = tuple(path for path in watched if path not in probed.ended)


def _telling(before: ProbeAnswer | None, answer: ProbeAnswer, turn: float) -> ProbeAnswer:
    """What is to be told of a target. That nothing was heard in a turn shorter than a whole try says less than what
    was heard before.
    """
    if before is None or before.answer == UNTRIED:
        return answer
    return before if answer.answer == UNTRIED or (answer.answer == SILENT and turn < TRY) else answer


async def _gave_up(
    targets: Targets,
    timeout_sec: float,
    last: Mapping[str, ProbeAnswer],
    logs: Callable[[], Awaitable[Mapping[str, str]]],
) -> ReadinessError:
    ill = [name for name in targets.names if name not in last or not last[name].healthy]
    lines = [f"{name}: {last[name].answer if name in last else 'not asked'}" for name in targets.names]
    for service, text in (await logs()).items():
        lines += ["", f"{service}:", *excerpt(text)]
    return ReadinessError(
        f"the world was not healthy in {timeout_sec:g} s: {len(ill)} of {len(targets.names)} probes failed",
        key="readiness",
        remedy="see what the services say, or raise readiness.timeout_sec",
        log_tail="\n".join(lines),
    )


def excerpt(text: str) -> list[str]:
    """How a log begins, since what is wrong may lie before all that the probes have made it say, and how it ends."""
    lines = text.splitlines()
    if len(lines) <= _FIRST_LINES + _LAST_LINES:
        return lines or ["(its log is empty)"]
    return [*lines[:_FIRST_LINES], "[...]", *lines[-_LAST_LINES:]]
