"""The services that the framework starts: the ones that this image has, all at once, with health checks and logs.

One supervisor, a shell script, starts them; it needs nothing of the image but a shell. It runs as an `exec_once` of the
sandbox, so that it is started once and is killed with all its descendants. `service_epoch` reads which run of it is the
latest, and the status of each service in it.
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from benchflow.contracts.environment import Service, ServiceStatus
from benchflow.contracts.sandbox import Sandbox, SandboxExecResult
from benchflow.errors import ServiceDiedError, WorldError
from benchflow.planes.environment import service_epoch
from benchflow.planes.environment.service_epoch import ServiceEpoch, ServiceRecord
from benchflow.planes.sandbox.background import start_once
from benchflow.planes.sandbox.timeouts import AwakeDeadline

_SUPERVISOR = Path(__file__).with_name("supervisor.sh").read_text()

PROBE_SEC = 30
"""Timeout of a service's `--help` probe, in seconds; a service whose probe exceeds it counts as not installed."""

LOG_CAP = 8 * 1024 * 1024
"""Maximum size of a service's log, in bytes; of a longer one the first and the last half are retained."""

GRACE_SEC = 3.0
"""Seconds between SIGTERM and SIGKILL of services."""

LATE_SEC = 10.0
"""Seconds, after a service exits with status 0 before it was healthy, in which its port may come up: it may have gone
into the background.
"""

_TAIL = 4000
_LAST_WORDS = 400
_MIN_POLL_SEC, _MAX_POLL_SEC = 0.02, 0.25
_REAP_TIMEOUT_SEC = 60.0
"""Seconds in which a living supervisor must have recorded the exit status of a service that is gone."""


class PortSource(Protocol):
    """A source of the TCP ports on which processes of a sandbox listen."""

    async def ports_in_use(self, ports: Sequence[int]) -> Mapping[int, str]:
        """Return those of `ports` that are listened on, with the listener's command and pid, empty if unknown."""
        ...


class Services:
    """The services of one sandbox."""

    def __init__(
        self,
        services: Sequence[Service],
        sandbox: Sandbox,
        *,
        ports: PortSource,
        env: Mapping[str, str] | None = None,
        source: str = "",
        probed: Mapping[str, bool] | None = None,
        probe_sec: int = PROBE_SEC,
        log_cap: int = LOG_CAP,
        grace_sec: float = GRACE_SEC,
        late_sec: float = LATE_SEC,
    ) -> None:
        """Make it.

        Args:
            services: Declared services.
            sandbox: Sandbox that they run in.
            ports: Source of the ports that are listened on there.
            env: Variables of the services' processes.
            source: Path of the manifest's file, for errors.
            probed: Known results of `--help` probes in this image, by name: whether each succeeded.
            probe_sec: See `PROBE_SEC`.
            log_cap: See `LOG_CAP`.
            grace_sec: See `GRACE_SEC`.
            late_sec: See `LATE_SEC`.
        """
        self._services = tuple(services)
        self._names = [service.name for service in services]
        self._sandbox = sandbox
        self._ports = ports
        self._env = dict(env or {})
        self._source = source
        self._probed = dict(probed or {})
        self._probe_sec = probe_sec
        self._log_cap = log_cap
        self._grace_sec = grace_sec
        self._late_sec = late_sec

    # --- start ---------------------------------------------------------------------------------------

    async def start(self) -> tuple[ServiceStatus, ...]:
        """Start the services that this image has, unless that was done; return all statuses once all probes are over.

        If the image has none of them, or a port is taken, no service runs, and the next call tries again.

        Raises:
            WorldError: The image has none of the services, a service's port was listened on before, the supervisor
                ended, or a probe hangs.
        """
        seen = await self._read_epoch()
        if seen.stage == "stopping":
            await self._stop_epoch(seen)
        known = self._read_probe_results(seen)
        number = await service_epoch.claim_epoch(self._sandbox)
        key = seen.key(number)
        said = await self._launch(seen, number, key, self._probed | known)
        seen = await self._await_decisions(said)
        await self._sandbox.mark_baseline(key)
        await self._require_startable(seen)
        return await self._make_statuses(seen)

    def _read_probe_results(self, seen: ServiceEpoch) -> dict[str, bool]:
        """Return the results of the probes in the last epoch, by name; nothing if no service came up in it."""
        decided = {
            name: record.state != "left_out"
            for name, record in zip(self._names, seen.records, strict=True)
            if record.state in ("running", "ended", "lost", "left_out")
        }
        return decided if any(decided.values()) else {}

    async def _launch(
        self, seen: ServiceEpoch, number: int, key: str, known: Mapping[str, bool]
    ) -> SandboxExecResult | None:
        """Start the supervisor, unless it was started; return its result if it has ended already."""
        taken: Mapping[int, str] = {}
        if not await self._sandbox.was_started(key):
            taken = await self._ports.ports_in_use([service.port for service in self._services])
        rows: list[str] = []
        for service in self._services:
            verdict = {None: "ask", True: "yes", False: "no"}[known.get(service.name)]
            if service.port in taken and verdict != "no":
                verdict = "taken"
            rows += [service.name, verdict, _get_program(service.command), service.command]
        place = self._sandbox.ref.workdir or "/"
        command = ["/bin/sh", "-c", _SUPERVISOR, "benchflow-world", seen.boot, str(number), place]
        command += [str(self._probe_sec), str(self._log_cap), *rows]
        return await start_once(self._sandbox, key, command, self._env)

    async def _await_decisions(self, said: SandboxExecResult | None) -> ServiceEpoch:
        """Poll until each service was started or left out, and return the service_epoch. Raise `WorldError` if not.

        Args:
            said: Result of the supervisor, if it has ended.
        """
        giving_up, pause = AwakeDeadline(self._probe_sec + PROBE_SEC), _MIN_POLL_SEC
        while True:
            seen = await self._read_epoch()
            if seen.supervised is not None and not any(record.state == "waiting" for record in seen.records):
                return seen
            if said is not None or seen.supervised is False or giving_up.is_over():
                raise WorldError(
                    "the services' supervisor ended" if said or seen.supervised is False else "the services hang",
                    remedy="the image needs /bin/sh and the usual small commands (coreutils or busybox)",
                    log_tail=(said.stderr or said.stdout)[-_TAIL:] or None if said else None,
                )
            await asyncio.sleep(pause)
            pause = min(pause * 1.3, _MAX_POLL_SEC)

    async def _require_startable(self, seen: ServiceEpoch) -> None:
        """Stop all services and raise `WorldError` if a port is taken or all are left out."""
        both = list(zip(self._services, seen.records, strict=True))
        for service, record in both:
            if record.state == "taken":
                who = (await self._ports.ports_in_use([service.port])).get(service.port) or "another process"
                await self._stop_epoch(seen)
                raise WorldError(
                    f"port {service.port} of the service {service.name!r} belongs to {who}",
                    file=self._source or None,
                    key=f"services.{service.name}.port",
                    remedy="choose another port, or see what the image starts by itself",
                )
        if all(record.state == "left_out" for _, record in both):
            words = await service_epoch.read_logs(self._sandbox, [f"{name}.probe" for name in self._names], _LAST_WORDS)
            await self._stop_epoch(seen)
            answers = (_format_answer(one, record, said) for (one, record), said in zip(both, words, strict=True))
            raise WorldError(
                "this image has none of the services: `--help` succeeded for none of them",
                file=self._source or None,
                key="services",
                remedy="install at least one of them in the image, or mend the commands",
                log_tail="\n".join(answers),
            )

    # --- status --------------------------------------------------------------------------------------

    async def statuses(self) -> tuple[ServiceStatus, ...]:
        """Return the status of each declared service."""
        return await self._make_statuses(await self._await_settled())

    async def exit_files(self) -> tuple[str, ...]:
        """Return the files of the sandbox that the supervisor writes when services end, one for each service."""
        seen = await self._read_epoch()
        return tuple(f"{seen.boot}/{seen.number}/{name}.exit" for name in self._names)

    async def age(self) -> float:
        """Return the seconds since the first of the services was started; 0 if none was."""
        records = (await self._read_epoch()).records
        return max(((record.ran or 0.0) + (record.ended_ago or 0.0) for record in records), default=0.0)

    async def require_running(self, *, starting: bool = False) -> None:
        """Raise `ServiceDiedError` if a service that was started has ended.

        A service that ended with status 0 while its port is served has gone into the background: it counts as running.

        Args:
            starting: Tolerate a service that waits for its start, and, for `late_sec`, one that ended with status 0.
        """
        seen = await self._await_settled()
        ended = [
            (service, record)
            for service, record in zip(self._services, seen.records, strict=True)
            if record.state in ("ended", "lost") or (record.state == "waiting" and not starting)
        ]
        behind = await self._find_in_background(seen)
        for service, record in ended:
            if service.name in behind:
                continue
            if record.code == 0 and starting and (record.ended_ago or 0.0) < self._late_sec:
                continue
            raise await self._make_death_error(service, record)

    async def _make_death_error(self, service: Service, record: ServiceRecord) -> ServiceDiedError:
        """Return the error for a service that has ended, with the end of its log."""
        after = f" after {record.ran:.1f} s" if record.ran is not None else ""
        if record.code is not None:
            how = f"ended with exit status {record.code}{after}"
        else:
            how = f"was killed{after}" if record.state == "lost" else "is not there any more"
        tail = (await self.logs(tail=_TAIL))[service.name]
        return ServiceDiedError(
            f"the service {service.name!r} {how}",
            file=self._source or None,
            key=f"services.{service.name}",
            remedy="its log says why; it must stay for as long as the rollout",
            log_tail=tail or "(its log is empty)",
        )

    async def logs(self, *, tail: int | None = None) -> dict[str, str]:
        """Return the output of each service in this boot of the sandbox: all that is retained, or its last bytes.

        Args:
            tail: Number of those bytes; None for all.
        """
        texts = await service_epoch.read_logs(self._sandbox, [f"{name}.log" for name in self._names], tail)
        return dict(zip(self._names, texts, strict=True))

    # --- stop ----------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Stop the services and all their descendants. Success if none runs."""
        seen = await self._read_epoch()
        if seen.stage in ("open", "stopping"):
            await self._stop_epoch(seen)

    async def _stop_epoch(self, seen: ServiceEpoch) -> None:
        """Stop an epoch: SIGTERM, then SIGKILL after `grace_sec`.

        Its directory records the begin and the end of that, so that after a crash the next call completes it.
        """
        told = await service_epoch.terminate_processes(self._sandbox, seen.number)
        grace, pause = AwakeDeadline(self._grace_sec), _MIN_POLL_SEC
        while await service_epoch.is_any_running(self._sandbox, told) and not grace.is_over():
            await asyncio.sleep(pause)
            pause = min(pause * 1.3, _MAX_POLL_SEC)
        await self._sandbox.kill_once(seen.key(seen.number))
        await service_epoch.mark_stopped(self._sandbox, seen.number)

    # --- records -------------------------------------------------------------------------------------

    async def _read_epoch(self) -> ServiceEpoch:
        return await service_epoch.read_epoch(self._sandbox, self._names)

    async def _await_settled(self) -> ServiceEpoch:
        """Return the epoch once no service is `lost`: the supervisor may not have recorded an exit status yet.

        Give that up when the supervisor is dead, or after `_REAP_TIMEOUT_SEC`.
        """
        reaping = AwakeDeadline(_REAP_TIMEOUT_SEC)
        while True:
            seen = await self._read_epoch()
            lost = any(record.state == "lost" for record in seen.records)
            if not lost or not seen.supervised or reaping.is_over():
                return seen
            await asyncio.sleep(_MIN_POLL_SEC)

    async def _find_in_background(self, seen: ServiceEpoch) -> set[str]:
        """Return the services that ended with status 0 while their port is served, by a process that they left."""
        quiet = {
            service.port: service.name
            for service, record in zip(self._services, seen.records, strict=True)
            if record.state == "ended" and record.code == 0
        }
        return {quiet[port] for port in await self._ports.ports_in_use(list(quiet))} if quiet else set()

    async def _make_statuses(self, seen: ServiceEpoch) -> tuple[ServiceStatus, ...]:
        behind = await self._find_in_background(seen)
        return tuple(
            _make_status(service, ServiceRecord("running") if service.name in behind else record)
            for service, record in zip(self._services, seen.records, strict=True)
        )


def _make_status(service: Service, record: ServiceRecord) -> ServiceStatus:
    state = record.state if record.state in ("left_out", "running") else "ended"
    code = record.code if record.state == "ended" else None
    return ServiceStatus(name=service.name, port=service.port, state=state, exit_code=code)


def _get_program(command: str) -> str:
    """Return the word of a command that a shell takes for the program."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    return words[0] if words else ""


def _format_answer(service: Service, record: ServiceRecord, said: str) -> str:
    """Return the result of a service's `--help` probe as one line; `said` is its output."""
    words = " ".join(said.split()) or "it said nothing"
    how = f"exit status {record.code}" if record.code is not None else "known from before"
    return f"{service.name}: `{_get_program(service.command)} --help`: {how}: {words}"
