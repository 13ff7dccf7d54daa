"""The registered rollouts: their state, and the files from which a restarted gateway restores it."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path

import structlog
from pydantic import ValidationError

from benchflow.contracts.base import Model
from benchflow.contracts.gateway import Attribution, GatewayStatus, RefusedLine, Registration
from benchflow.errors import BenchFlowError, ConfigError, StoreError, UnknownRolloutError
from benchflow.gateway.blockage import Blockage
from benchflow.gateway.budget import Meter
from benchflow.gateway.call_record import CallRedactor, Past, Record
from benchflow.gateway.hook import MakeReplayer, Replayer
from benchflow.gateway.prefix import PrefixCheck
from benchflow.gateway.prices import has_price
from benchflow.gateway.sampling import check_sampling, needs_usage
from benchflow.gateway.upstream import Outage
from benchflow.host_files import raise_storage_errors, write_atomic
from benchflow.paths import GatewayPaths
from benchflow.trajectories.journal import format_timestamp

log = structlog.get_logger("benchflow.gateway")

MAX_AT_ONCE = 16
"""Maximum of a rollout's calls in flight where tokens or cost are limited: these are known only when calls end."""

MAX_AT_ONCE_UNLIMITED = 64
"""Maximum of a rollout's calls in flight otherwise: each holds a connection to the endpoint, and its bodies."""


class StoredCallState(Model):
    """Stored state of a rollout."""

    registration: Registration
    attribution: Attribution = Attribution()
    held: bool = False
    """Whether new calls are held."""


class RolloutCalls:
    """One rollout's calls: how many are in flight, whether new ones are held, and their usage."""

    def __init__(
        self,
        stored: StoredCallState,
        meter: Meter,
        past: Past,
        replayer: Replayer | None,
        prefix: PrefixCheck | None,
        blockage: Blockage,
    ) -> None:
        """Make it.

        Args:
            stored: Registration, attribution, and whether calls are held.
            meter: Usage so far, and the limits.
            past: Calls that an earlier gateway has recorded.
            replayer: Answers calls from a record; None if all go to the upstream.
            prefix: Check of the first call of a resumed session; None for none.
            blockage: Times in which the gateway itself has kept calls waiting.
        """
        self.registration = stored.registration
        self.attribution = stored.attribution
        self.meter = meter
        self.record = Record(Path(stored.registration.record))
        self.replayer = replayer
        self.prefix = prefix
        self.live = replayer is None
        self.failure: str | None = None
        self.refusals = past.refusals
        self._next_seq, self._requests = past.next_seq, past.requests
        self._in_flight = self._waiting = 0
        self._slots = asyncio.Semaphore(MAX_AT_ONCE)
        self._unlimited_slots = asyncio.Semaphore(MAX_AT_ONCE_UNLIMITED)
        self._open = asyncio.Event()
        if not stored.held:
            self._open.set()
        self._changed = asyncio.Event()
        self._quiet_since = time.monotonic()
        self._left_calls: set[Callable[[], None]] = set()
        self.blockage = blockage
        self.outage = Outage(blockage.add)
        self.last_received: dict[str, float] = {}
        """Monotonic time at which the endpoint last sent anything, by the ids of calls in flight there."""
        self.is_over = False
        """Whether the rollout was forgotten, so that its record is not read any more."""

    @property
    def is_held(self) -> bool:
        """Return whether new calls are held."""
        return not self._open.is_set()

    def hold(self, held: bool) -> None:
        """Hold new calls, or let them go, those that wait first."""
        if held:
            self._open.clear()
        else:
            self._open.set()

    async def wait_for_admission(self) -> None:
        """Wait until new calls are not held."""
        self._waiting += 1
        try:
            await self._open.wait()
        finally:
            self._waiting -= 1

    @contextmanager
    def count_in_flight(self) -> Iterator[None]:
        """Count a call as in flight inside the block: its agent waits for it."""
        self._in_flight += 1
        self._notify()
        try:
            yield
        finally:
            self._in_flight -= 1
            self._quiet_since = time.monotonic()
            self._notify()

    def read_on(self, cut_off: Callable[[], None]) -> bool:
        """Return whether the rest of a call whose agent left may be read. The rollout's end calls `cut_off`."""
        if not self.is_over:
            self._left_calls.add(cut_off)
        return not self.is_over

    def note_read(self, cut_off: Callable[[], None]) -> None:
        """Forget a call whose rest was read."""
        self._left_calls.discard(cut_off)

    def end(self) -> None:
        """Mark the rollout as over, and cut off the calls that no agent waits for."""
        self.is_over = True
        for cut_off in list(self._left_calls):
            cut_off()

    def slot(self) -> AbstractAsyncContextManager[None]:
        """Return the semaphore that bounds the rollout's calls in flight."""
        return self._slots if needs_usage(self.registration) else self._unlimited_slots

    def take_seq(self) -> int:
        """Return the number of the next request in the record, and count it."""
        self._next_seq += 1
        return self._next_seq - 1

    def refuse(self, method: str, path: str, unpriced: str | None = None) -> None:
        """Count a request that is not forwarded, and record it unless that would let the record grow without bound.

        Args:
            method: Its method.
            path: Its path.
            unpriced: Part of it that has no known price, if that is the reason.
        """
        redact = CallRedactor(self.registration, None)
        refused = self.refusals.add(method, redact(path), redact(unpriced) if unpriced is not None else None)
        if refused is None:
            return
        line = RefusedLine(ts=format_timestamp(), **refused.model_dump())
        try:
            self.record.append(json.dumps({"type": line.type} | line.model_dump()))
        except StoreError as error:
            self.failure = str(error)

    def count_request(self) -> None:
        """Count a recorded request."""
        self._requests += 1

    async def until_quiet(self, quiet_for: float, timeout: float) -> bool:
        """Wait until no call was in flight for a time, counted from now at the earliest. Return whether that was so.

        Args:
            quiet_for: Seconds without a call in flight.
            timeout: Seconds after which to give up and return False.
        """
        started = time.monotonic()
        while True:
            now = time.monotonic()
            left = started + timeout - now
            rest = max(self._quiet_since, started) + quiet_for - now
            if not self._in_flight and rest <= 0:
                return True
            if left <= 0:
                return False
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left if self._in_flight else min(left, rest))

    def status(self) -> GatewayStatus:
        """Return the rollout's status for the engine."""
        return GatewayStatus(
            id=self.registration.id,
            in_flight=self._in_flight,
            waiting=self._waiting,
            held=self.is_held,
            requests=self._requests,
            attribution=self.attribution,
            usage=self.meter.totals,
            budget_exhausted=self.meter.exhausted,
            replay=self.replayer.status() if self.replayer is not None else None,
            prefix=self.prefix.state if self.prefix is not None else None,
            prefix_divergence=self.prefix.divergence if self.prefix is not None else None,
            failure=self.failure,
            refused=self.refusals.to_requests(),
            blocked=tuple(self.blockage.intervals),
            silent={id_: round(time.monotonic() - moment, 1) for id_, moment in self.last_received.items()},
        )

    def make_stored(self, **changes: Registration | Attribution | bool) -> StoredCallState:
        """Return the state to store, with `changes` in place of present values."""
        stored = StoredCallState(registration=self.registration, attribution=self.attribution, held=self.is_held)
        return stored.model_copy(update=changes)

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()


class Rollouts:
    """All rollouts of this host, by id and by token."""

    def __init__(self, paths: GatewayPaths, make_replayer: MakeReplayer | None) -> None:
        """Make it empty. `make_replayer` opens records to answer from; None refuses registrations with a replay."""
        self._directory = paths.rollouts
        self._make_replayer = make_replayer
        self._by_id: dict[str, RolloutCalls] = {}
        self._by_token: dict[str, RolloutCalls] = {}
        self._registering = asyncio.Lock()

    def load(self) -> None:
        """Restore the rollouts that an earlier gateway stored, and answer in their records the calls that it left open.

        Raises an error if the disk is full or unavailable; a rollout that cannot be restored otherwise is only logged.
        """
        for file in sorted(self._directory.glob("*.json")):
            try:
                self._add(self._read(StoredCallState.model_validate_json(file.read_bytes())))
            except (ValidationError, BenchFlowError) as error:
                if isinstance(error, BenchFlowError) and error.is_outage:
                    # The next start restores it, once there is space: if it were skipped, its agent would be refused.
                    raise
                # An error of one rollout must not keep the others from their models.
                log.error("a rollout is not known any more", file=str(file), error=str(error))

    async def register(self, registration: Registration) -> RolloutCalls:
        """Add a rollout, or change its settings, and return it.

        Raises:
            ConfigError: The gateway cannot carry the registration out.
            StoreError: It cannot be stored.
        """
        self._check(registration)
        async with self._registering:
            return await self._register(registration)

    async def _register(self, registration: Registration) -> RolloutCalls:
        known = self._by_id.get(registration.id)
        if known is not None and known.registration == registration:
            return known
        if known is not None and _has_same_calls(known.registration, registration):
            self._write(known.make_stored(registration=registration))
            known.registration = registration
            known.meter.limits = registration.limits
            return known
        # In a thread, since records may be large.
        stored = StoredCallState(registration=registration)
        rollout = await asyncio.to_thread(self._read, stored)
        if known is not None and known.registration.token != registration.token:
            # Before the write: a gateway that ends between the two must not leave a valid old token to the next one.
            self._remove_file(known)
        self._write(stored)
        self._drop(registration.id)
        self._add(rollout)
        return rollout

    def forget(self, id_: str) -> None:
        """Invalidate a rollout's token, if it is known. Calls in flight go on as long as an agent waits for them."""
        if id_ in self._by_id:
            self._remove_file(self._by_id[id_])
            self._drop(id_)

    def _drop(self, id_: str) -> None:
        """Remove a rollout from memory alone, if it is known."""
        rollout = self._by_id.pop(id_, None)
        if rollout is not None:
            rollout.end()
            self._by_token.pop(_digest(rollout.registration.token), None)

    def attribute(self, id_: str, attribution: Attribution) -> RolloutCalls:
        """Attribute the rollout's calls to a turn from now on, and return it. Raise `UnknownRolloutError`."""
        rollout = self.get(id_)
        if rollout.attribution != attribution:
            self._write(rollout.make_stored(attribution=attribution))
            rollout.attribution = attribution
        return rollout

    def hold(self, id_: str, held: bool) -> RolloutCalls:
        """Hold the rollout's new calls, or let them go, and return it. Raise `UnknownRolloutError`."""
        rollout = self.get(id_)
        if rollout.is_held != held:
            self._write(rollout.make_stored(held=held))
            rollout.hold(held)
        return rollout

    def get(self, id_: str) -> RolloutCalls:
        """Return the rollout of this id. Raise `UnknownRolloutError`."""
        if id_ not in self._by_id:
            raise UnknownRolloutError(f"the gateway does not know the rollout {id_}", remedy="register it")
        return self._by_id[id_]

    def find_by_token(self, token: str | None) -> RolloutCalls | None:
        """Return the rollout of this token; None if there is none."""
        return self._by_token.get(_digest(token)) if token else None

    def all(self) -> list[RolloutCalls]:
        """Return all registered rollouts."""
        return list(self._by_id.values())

    def _check(self, registration: Registration) -> None:
        """Raise `ConfigError` for a registration that this gateway cannot carry out."""
        check_sampling(registration)
        if registration.limits.cost_usd is not None and not has_price(registration.model or ""):
            raise ConfigError(
                f"the price of {registration.model or 'a model that nobody named'} is not known",
                key="limits.cost_usd",
                remedy="limit tokens or calls instead",
            )
        if registration.replay is not None and self._make_replayer is None:
            raise ConfigError("this gateway answers from no record", key="replay")

    def _read(self, stored: StoredCallState) -> RolloutCalls:
        """Make a rollout from its stored state and its record, which is repaired."""
        registration = stored.registration
        meter = Meter(registration.limits)
        past = Record(Path(registration.record)).recover(meter)
        replayer = None
        if registration.replay is not None and self._make_replayer is not None:
            replayer = self._make_replayer(registration, past.calls)
        blockage = Blockage(self._file(registration).with_suffix(".blocked"))
        return RolloutCalls(stored, meter, past, replayer, PrefixCheck.open(registration), blockage)

    def _add(self, rollout: RolloutCalls) -> None:
        self._by_id[rollout.registration.id] = rollout
        self._by_token[_digest(rollout.registration.token)] = rollout

    def _write(self, stored: StoredCallState) -> None:
        """Store a rollout's state, before it is changed in memory. Raise `StoreError`.

        After an error the engine sends its request again. If memory had changed already, that would be taken for done,
        and the next gateway would not know of the change.
        """
        file = self._file(stored.registration)
        write_atomic(file, stored.model_dump_json().encode(), mode=0o600, durable=False)

    def _remove_file(self, rollout: RolloutCalls) -> None:
        file = self._file(rollout.registration)
        with raise_storage_errors(file):
            file.unlink(missing_ok=True)
            file.with_suffix(".blocked").unlink(missing_ok=True)

    def _file(self, registration: Registration) -> Path:
        return self._directory / f"{_digest(registration.token)}.json"


def _has_same_calls(old: Registration, new: Registration) -> bool:
    """Return whether calls counted under the old registration still count under the new one."""
    same = ("token", "record", "replay", "prefix", "prefix_requests", "prefix_replayed")
    return all(getattr(old, name) == getattr(new, name) for name in same)


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()
