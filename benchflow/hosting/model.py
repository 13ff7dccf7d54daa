"""An agent's access to its model through this host's gateway, which holds the key, records calls and counts usage."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from benchflow.contracts.agent import Intervals
from benchflow.contracts.agent_record import AgentEndpoint, AgentRecord
from benchflow.contracts.gateway import (
    RELAY_MOUNT,
    RELAY_PORT,
    SOCKET_NAME,
    STALL_SEC,
    GatewayStatus,
    ModelLimits,
    Registration,
    RetryPolicy,
    UsageTotals,
    agent_base_url,
)
from benchflow.contracts.job import RolloutSpec
from benchflow.contracts.rollout_records import ModelAccess, Step, Usage
from benchflow.contracts.sandbox import Mount, Sandbox
from benchflow.errors import (
    AgentError,
    BenchFlowError,
    CallsUnderWayError,
    GatewayUnavailableError,
    ModelEndpointError,
    UnknownRolloutError,
    UnsupportedFeatureError,
)
from benchflow.gateway.endpoint_errors import endpoint_error
from benchflow.gateway.turn_calls import TurnCalls, TurnEnd
from benchflow.host_files import raise_storage_errors
from benchflow.hosting.parent_calls import ParentCalls
from benchflow.paths import RolloutPaths, StatePaths
from benchflow.planes.agent.agent_settings import choose_credentials, find_endpoint
from benchflow.planes.agent.notes import Notes
from benchflow.planes.sandbox.background import start_once
from benchflow.planes.sandbox.timeouts import awake_timeout
from benchflow.trajectories.rollout_tree import make_step_node_id

if TYPE_CHECKING:
    from benchflow.gateway.gateway_client import GatewayClient

QUIET_SEC = 30.0
"""Maximum number of seconds that the end of a turn waits for its agent's calls in flight."""

RELAY_KEY = "relay"
"""Idempotency key of the relay, by which a sandbox's processes reach the gateway."""

ANSWER_SEC = 5.0
"""Seconds without a response to a status request after which the gateway is taken for frozen. At most the gap between
two polls of a turn from which time counts as unattended (`FROZEN_SEC` in `planes.sandbox.timeouts`)."""

_POLL_INTERVAL_SEC = 0.5
_POLLS_PER_READ = 10
"""Polls of the gateway's status between two readings of the record of a turn's calls."""

_TOKEN = "gateway"


def choose_access(spec: RolloutSpec, record: AgentRecord, *, has_socket: bool) -> ModelAccess:
    """Return how the rollout's agent reaches its model: `gateway`, `direct`, or `none` if it calls none.

    Args:
        spec: The rollout.
        record: Registry record of the agent.
        has_socket: Whether the agent can reach the gateway's socket from where it runs.

    Raises:
        UnsupportedFeatureError: Access is direct, and the job asks for limits, sampling or a replay, which only the
            gateway can apply.
    """
    if not record.takes_model or not record.endpoints:
        return "none"
    logs_in_itself = any(name.startswith("~/") for name in spec.agent.credentials)
    if has_socket and not logs_in_itself:
        return "gateway"
    for key in ("limits", "sampling", "replay"):
        if getattr(spec.run, key) not in (None, type(getattr(spec.run, key))()):
            why = "logs in by itself" if logs_in_itself else "is in a sandbox that mounts nothing of its host"
            raise UnsupportedFeatureError(
                f"agent {record.name!r} {why}: its calls do not pass the gateway, which alone could see to it",
                key=key,
                remedy="give it a key instead of a login, or leave it away",
            )
    return "direct"


async def run_relay(sandbox: Sandbox, program: Sequence[str]) -> None:
    """Start the relay between a sandbox and the gateway unless it was started. `program`: argv without its address."""
    await start_once(sandbox, RELAY_KEY, [*program, str(RELAY_PORT), f"{RELAY_MOUNT}/{SOCKET_NAME}"])


def make_gateway_mount(state: StatePaths) -> Mount:
    """Return the read-only mount of the gateway's socket directory for a sandbox. Makes the directory on this host."""
    directory = state.gateway.public
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    return Mount(source=str(directory), target=RELAY_MOUNT, read_only=True)


class RolloutModel:
    """The gateway's side of one rollout: registers it, holds, attributes and counts its model calls.

    Methods raise `GatewayUnavailableError` if the gateway does not respond; `blocked`, `forget`, `warnings` do not.
    `open` also raises `ConfigError` for a registration that can't be carried out.
    """

    def __init__(
        self,
        state: StatePaths,
        spec: RolloutSpec,
        record: AgentRecord,
        results: RolloutPaths,
        parent_results: RolloutPaths | None,
        notes: Path | None,
    ) -> None:
        """Make it.

        Args:
            state: State directory of this host, where the gateway's sockets are.
            spec: The rollout.
            record: Registry record of the rollout's agent.
            results: Results of the rollout, with the record of its calls.
            parent_results: Results of a child's parent; None for a root.
            notes: Directory of the rollout's notes on this host, which no sandbox mounts; None without a sandbox.
        """
        self._state = state
        self._spec = spec
        self._record = record
        self._results = results
        self._directory = notes
        self.parent_calls = ParentCalls(spec, record, results, parent_results)

    @cached_property
    def _notes(self) -> Notes:
        assert self._directory is not None, "the rollout has no sandbox"
        return Notes(self._directory)

    @cached_property
    def _endpoint(self) -> AgentEndpoint:
        endpoint, _ = find_endpoint(self._record, self._spec.agent.model, self._spec.agent.base_url)
        assert endpoint is not None  # an agent without one has no access by the gateway
        return endpoint

    @property
    def _retries(self) -> RetryPolicy:
        return RetryPolicy.of(self._spec.run.endpoint_policy)

    @property
    def base_url(self) -> str:
        """Base URL that the agent is given for its model: the relay's, on the loopback."""
        return agent_base_url(self._endpoint.api)

    @property
    def token(self) -> str:
        """API key that the agent is given: a token of the gateway. It is made and noted at first use."""
        from benchflow.gateway.gateway_client import make_token

        return str(self._notes.write_once(_TOKEN, {"token": make_token()})["token"])

    def _make_client(self) -> GatewayClient:
        from benchflow.gateway.gateway_client import GatewayClient

        return GatewayClient(self._state)

    async def open(self) -> None:
        """Start the gateway unless it runs, register the rollout, and let its calls through. May be called again."""
        from benchflow.gateway.gateway_process import ensure_gateway

        self._notes.make()
        await ensure_gateway(self._state)
        await self._register()
        await self._make_client().release(self._spec.id)

    @property
    def socket(self) -> Path:
        """Path of the gateway's Unix socket for agents."""
        return self._state.gateway.public / SOCKET_NAME

    async def _register(self) -> None:
        spec, endpoint = self._spec, self._endpoint
        _, spelled = find_endpoint(self._record, spec.agent.model, spec.agent.base_url)
        await self._make_client().register(
            Registration(
                id=spec.id,
                token=self.token,
                job_id=spec.job_id,
                agent=self._record.name.removeprefix("acpx/"),
                api=endpoint.api,
                base_url=spec.agent.base_url or endpoint.upstream,
                credentials=spec.agent.credentials,
                model=spelled,
                record=str(self._results.model_calls),
                limits=spec.run.limits,
                sampling=spec.run.sampling,
                retries=self._retries,
                # A model that the agent may wait for is no stalled one: whole answers come after minutes of silence.
                stall_sec=max(STALL_SEC, spec.run.agent_idle_timeout_sec),
                requests=endpoint.requests,
                replay=spec.run.replay or await asyncio.to_thread(self.parent_calls.make_replay),
                **self.parent_calls.make_prefix(),
            )
        )

    async def release(self) -> None:
        """Let the rollout's held calls and all new ones through."""
        await self._make_client().release(self._spec.id)

    async def count_requests(self) -> int:
        """Hold new calls until `release`, wait for those in flight, and return the number of recorded requests.

        Raises `CallsUnderWayError` if a call is still in flight after `QUIET_SEC`: the gateway retries an endpoint for
        minutes, longer than one attempt waits.
        """
        client = self._make_client()
        await client.hold(self._spec.id)
        if not await client.until_quiet(self._spec.id, timeout=QUIET_SEC):
            raise CallsUnderWayError(
                f"a call of the agent's model was still under way after {QUIET_SEC:g} s",
                remedy="branch where the agent has ended its turn",
            )
        return (await client.status(self._spec.id)).requests

    async def begin_turn(self, step: Step) -> tuple[UsageTotals, TurnCalls]:
        """Attribute the calls from now on to the turn of a step.

        Returns:
            The rollout's usage before the turn, and a reader of the turn's calls; a retry gets the noted ones.
        """
        try:
            status = await self._attribute(step)
        except UnknownRolloutError:
            # The gateway could not read its file of the registration: register again.
            await self._register()
            status = await self._attribute(step)
        noted = self._notes.write_once(f"usage-{step.index}", status.usage.model_dump(mode="json"))
        return UsageTotals.model_validate(noted), self._read_calls_since(f"calls-{step.index}")

    async def _attribute(self, step: Step) -> GatewayStatus:
        own = self._spec.branch
        # A replayed turn of the parent leads to no node of this rollout.
        is_own = own is None or step.index >= own.checkpoint.steps_done
        node = make_step_node_id(step.index, self._spec.chain) if is_own else None
        return await self._make_client().attribute(self._spec.id, node=node, role=step.role, turn=step.index)

    @contextlib.asynccontextmanager
    async def watch_calls(self, calls: TurnCalls, stop: Callable[[], None]) -> AsyncIterator[None]:
        """Call `stop` during the block, at most once, if a limit is used up or the endpoint fails for too long.

        Some agents repeat a failing call without end. `calls` are those of the turn.
        """
        has_limits = self._spec.run.limits != ModelLimits()
        patience_sec = self._retries.total_sec

        async def watch() -> None:
            looks = 0
            while True:
                await asyncio.sleep(_POLL_INTERVAL_SEC)
                looks += 1
                with contextlib.suppress(BenchFlowError):
                    if has_limits and (await self._make_client().status(self._spec.id)).budget_exhausted is not None:
                        return stop()
                if looks % _POLLS_PER_READ == 0:
                    await asyncio.to_thread(calls.read)
                    if calls.failing_sec > patience_sec:
                        return stop()

        task = asyncio.create_task(watch())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def find_blocked(self) -> Intervals | None:
        """Return the intervals in which calls waited for the gateway itself; None if it does not respond soon."""
        from benchflow.gateway.gateway_client import GatewayClient

        try:
            async with awake_timeout(ANSWER_SEC):
                status = await GatewayClient(self._state, patience=0.0).status(self._spec.id)
        except (GatewayUnavailableError, TimeoutError):
            return None
        except BenchFlowError:
            # It responded, so it serves the agent, too: nothing waits.
            return ()
        return status.blocked

    @contextlib.asynccontextmanager
    async def explain_errors(self, session: int) -> AsyncIterator[None]:
        """Replace an `AgentError` while a session opens by `ModelEndpointError`, if a failed model call caused it."""
        calls = self._read_calls_since(f"opening-{session}")
        try:
            yield
        except AgentError as error:
            silent: dict[str, float] = {}
            with contextlib.suppress(BenchFlowError):
                silent = (await self._make_client().status(self._spec.id)).silent
            found = await self.find_endpoint_error(calls, TurnEnd("opening"), silent)
            if not isinstance(found, ModelEndpointError):
                raise
            found.log_tail = "\n".join(text for text in (error.message, error.log_tail) if text)
            raise found from error

    def _read_calls_since(self, name: str) -> TurnCalls:
        """Return a reader of the calls since the first request under this name, whose offset is noted."""
        record = self._results.model_calls
        with raise_storage_errors(record):
            size = record.stat().st_size if record.exists() else 0
        return TurnCalls(record, self._notes.write_once(name, {"offset": size})["offset"])

    async def find_endpoint_error(
        self, calls: TurnCalls, end: TurnEnd, silent: Mapping[str, float]
    ) -> BenchFlowError | None:
        """Return the error of a turn whose model did not answer; else None. See `TurnCalls.find_problem`."""
        await asyncio.to_thread(calls.read)
        problem = calls.find_problem(end, silent)
        if problem is None:
            return None
        agent = self._spec.agent
        base_url = agent.base_url or self._endpoint.upstream
        return endpoint_error(problem, base_url, choose_credentials(self._endpoint, agent.credentials))

    async def end_turn(self, before: UsageTotals) -> tuple[bool, GatewayStatus, Usage]:
        """Wait at most `QUIET_SEC` for the turn's calls in flight, and return the turn's usage.

        Args:
            before: Usage of the rollout before the turn, from `begin_turn`.

        Returns:
            Whether no call is in flight any more, the gateway's status of the rollout, and the turn's usage.
        """
        client = self._make_client()
        quiet = await client.until_quiet(self._spec.id, timeout=QUIET_SEC)
        status = await client.status(self._spec.id)
        return quiet, status, _subtract_usage(before, status.usage)

    async def count_usage(self, step: Step) -> Usage | None:
        """Hold new calls until `release`, wait for those in flight, and return the usage of an interrupted turn.

        Returns None if `begin_turn` was never called for the step. After `QUIET_SEC` a call may still be in flight.
        """
        noted = self._notes.read(f"usage-{step.index}")
        if noted is None:
            return None
        client = self._make_client()
        await client.hold(self._spec.id)
        await client.until_quiet(self._spec.id, timeout=QUIET_SEC)
        return _subtract_usage(UsageTotals.model_validate(noted), (await client.status(self._spec.id)).usage)

    async def hold(self) -> None:
        """Hold new calls until the next session: processes that an agent left must not call its model."""
        with contextlib.suppress(UnknownRolloutError):
            await self._make_client().hold(self._spec.id)

    async def forget(self) -> None:
        """Invalidate the rollout's token at the gateway, if one runs. Raises nothing: the reaper retries."""
        client = self._find_running_client()
        if client is not None:
            with contextlib.suppress(BenchFlowError):
                await client.forget(self._spec.id)

    async def list_warnings(self) -> list[str]:
        """Return warnings about refused requests, calls without a record, estimated tokens; none without a gateway."""
        client = self._find_running_client()
        if client is None:
            return []
        try:
            status = await client.status(self._spec.id)
        except BenchFlowError:
            # A rollout whose agent never opened a session was not registered.
            return []
        warnings = [
            f"the model gateway refused {refused.count} × {refused.method} {refused.path}"
            + (f": the price of {refused.unpriced or 'its model'} is not known" if refused.unpriced is not None else "")
            if refused.path is not None
            else f"the model gateway refused {refused.count} × other requests"
            for refused in status.refused
        ]
        if status.failure is not None:
            warnings.append(f"not all model calls were made or recorded: {status.failure}")
        if status.usage.unmetered:
            warnings.append(
                f"the tokens of {status.usage.unmetered} model calls are estimated: their endpoint did not tell them"
            )
        return warnings

    def _find_running_client(self) -> GatewayClient | None:
        """Return a client with a short timeout; None for an agent without a model, and if no gateway runs."""
        if not self._record.takes_model or not self._state.gateway.rollouts.is_dir():
            return None
        from benchflow.gateway.gateway_client import GatewayClient
        from benchflow.gateway.gateway_process import is_running

        return GatewayClient(self._state, patience=2.0) if is_running(self._state) else None


def _subtract_usage(before: UsageTotals, now: UsageTotals) -> Usage:
    # The cost of some calls alone would be taken for the cost of all.
    known = now.cost_usd is not None and now.unpriced == 0
    cost = (now.cost_usd or 0.0) - (before.cost_usd or 0.0) if known else None
    return Usage(
        calls=now.calls - before.calls,
        estimated_calls=now.unmetered - before.unmetered,
        input_tokens=now.input_tokens - before.input_tokens,
        output_tokens=now.output_tokens - before.output_tokens,
        cached_tokens=now.cached_tokens - before.cached_tokens,
        reasoning_tokens=now.reasoning_tokens - before.reasoning_tokens,
        cost=cost,
        currency=None if cost is None else "USD",
    )
