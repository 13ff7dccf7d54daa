"""Waiting until a world is healthy: all of its probes at once, inside the sandbox, under one deadline.

The processes that serve the probes are checked meanwhile, so that the wait ends early if one has died.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from benchflow.contracts.environment import Manifest, ProbeAnswer, Service
from benchflow.errors import ReadinessError
from benchflow.planes.environment.helper.probe import SILENT, TRY, UNTRIED
from benchflow.planes.environment.world_helper import WorldHelper

POLL_INTERVAL_SEC = 2.0
"""Seconds between two checks of the processes that serve the probes. Their exit files are watched all the time."""

SLOW_POLL_INTERVAL_SEC = 12.0
"""The same interval after a probe has timed out, so that a slow answer is not cut short by each check."""

_FIRST_LINES, _LAST_LINES = 5, 10


@dataclass(frozen=True)
class Targets:
    """Targets of readiness probes."""

    http: tuple[str, ...]
    """URLs as the sandbox sees them."""

    tcp: tuple[int, ...]
    """Ports of the sandbox's localhost."""

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of all targets, as the answers have them: URLs, and `tcp://localhost:PORT`."""
        return (*self.http, *(f"tcp://localhost:{port}" for port in self.tcp))

    def without(self, done: Mapping[str, ProbeAnswer]) -> Targets:
        """Return the targets that are not in `done`."""
        return Targets(
            tuple(url for url in self.http if url not in done),
            tuple(port for port in self.tcp if f"tcp://localhost:{port}" not in done),
        )


def list_targets(manifest: Manifest, started: Sequence[Service]) -> Targets:
    """Return the manifest's readiness targets; without URLs there, the health URLs of the services `started`."""
    derived = tuple(f"http://localhost:{service.port}{service.health_path}" for service in started)
    return Targets(
        tuple(dict.fromkeys(manifest.readiness.http or derived)), tuple(dict.fromkeys(manifest.readiness.tcp))
    )


async def wait_until_healthy(
    helper: WorldHelper,
    targets: Targets,
    timeout_sec: float,
    *,
    exits: Sequence[str],
    look: Callable[[], Awaitable[None]],
    logs: Callable[[], Awaitable[Mapping[str, str]]],
    clock: Callable[[], float],
) -> tuple[ProbeAnswer, ...]:
    """Poll all targets until each was healthy once, and return their answers.

    Args:
        helper: Client of the helper in the sandbox.
        targets: The targets.
        timeout_sec: Seconds until the deadline, by `clock`.
        exits: Files of the sandbox that appear when a process ends that should run; each calls for a `look`.
        look: Raises if such a process has died. It is also called from time to time, and at the end.
        logs: Returns the logs of the services, for the error.
        clock: Returns the current time in seconds.

    Raises:
        ReadinessError: A target was not healthy by the deadline.
    """
    began = clock()
    done: dict[str, ProbeAnswer] = {}
    last: dict[str, ProbeAnswer] = {}
    watched = tuple(exits)
    slow = False
    while True:
        spent = clock() - began
        left = targets.without(done)
        turn = max(0.05, min(SLOW_POLL_INTERVAL_SEC if slow else POLL_INTERVAL_SEC, timeout_sec - spent))
        probed = await helper.probe(http=left.http, tcp=left.tcp, deadline=turn, exits=watched)
        for answer in probed.answers:
            last[answer.target] = _choose_answer(last.get(answer.target), answer, turn)
            if answer.healthy:
                done[answer.target] = answer.model_copy(update={"seconds": spent + (answer.seconds or 0.0)})
        slow = any(SILENT in answer.answer for answer in probed.answers)
        await look()
        if not targets.without(done).names:
            return tuple(done[name] for name in targets.names)
        if clock() - began >= timeout_sec:
            raise await _make_timeout_error(targets, timeout_sec, last, logs)
        # `look` did not raise for these exits, so they are no reason to give up: stop watching for them.
        watched = tuple(path for path in watched if path not in probed.ended)


def _choose_answer(before: ProbeAnswer | None, answer: ProbeAnswer, turn: float) -> ProbeAnswer:
    """Return the more telling one of a target's last two answers.

    A timeout in a turn that is shorter than a whole attempt says less than the answer before it.
    """
    if before is None or before.answer == UNTRIED:
        return answer
    return before if answer.answer == UNTRIED or (answer.answer == SILENT and turn < TRY) else answer


async def _make_timeout_error(
    targets: Targets,
    timeout_sec: float,
    last: Mapping[str, ProbeAnswer],
    logs: Callable[[], Awaitable[Mapping[str, str]]],
) -> ReadinessError:
    """Return the error for a deadline that has passed, with the last answers and excerpts of the logs."""
    ill = [name for name in targets.names if name not in last or not last[name].healthy]
    lines = [f"{name}: {last[name].answer if name in last else 'not asked'}" for name in targets.names]
    for service, text in (await logs()).items():
        lines += ["", f"{service}:", *excerpt_log(text)]
    return ReadinessError(
        f"the world was not healthy in {timeout_sec:g} s: {len(ill)} of {len(targets.names)} probes failed",
        key="readiness",
        remedy="see what the services say, or raise readiness.timeout_sec",
        log_tail="\n".join(lines),
    )


def excerpt_log(text: str) -> list[str]:
    """Return the first and the last lines of a log. The first may tell the cause, before the probes' own log lines."""
    lines = text.splitlines()
    if len(lines) <= _FIRST_LINES + _LAST_LINES:
        return lines or ["(its log is empty)"]
    return [*lines[:_FIRST_LINES], "[...]", *lines[-_LAST_LINES:]]
