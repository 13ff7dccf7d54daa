"""The model that an agent calls: by way of this host's gateway, which has the real key, records, and counts."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from benchflow.contracts.agent import AgentRecord, Endpoint
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
from benchflow.contracts.rollout import ModelAccess, Step, Usage
from benchflow.contracts.sandbox import Mount, Sandbox
from benchflow.contracts.session import Intervals
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
from benchflow.hosting.parent_calls import ParentCalls
from benchflow.paths import RolloutPaths, StatePaths
from benchflow.planes.agent.notes import Notes
from benchflow.planes.agent.settings import credential_names, endpoint_of
from benchflow.planes.sandbox.background import start_once
from benchflow.planes.sandbox.timeouts import awake_timeout
from benchflow.store import storage_errors
from benchflow.trajectories.tree import node_id

if TYPE_CHECKING:
    from benchflow.gateway.client import GatewayClient

QUIET_SEC = 30.0
"""The longest that a turn waits for calls that its agent makes after its end."""

RELAY_KEY = "relay"
"""Under which a sandbox runs the way to its model."""

ANSWER_SEC = 5.0
"""Seconds after which a gateway that has not said what a turn waits for is taken for frozen. No more than whoever takes
the turn may look away (`FROZEN_SEC` in `planes.sandbox.timeouts`)."""

_LOOK_EVERY = 0.5
_LOOKS_PER_READ = 10
"""Looks at the gateway between two readings of the calls of a turn."""

_TOKEN = "gateway"


def access_of(spec: RolloutSpec, record: AgentRecord, *, has_socket: bool) -> ModelAccess:
    """Return how the rollout's agent reaches its model. has_socket: whether the gateway's socket is where it runs.

    Raises `UnsupportedFeatureError` where something is asked for that only the gateway can do.
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
    """Run the relay by which a sandbox's processes reach the gateway, unless it runs."""
    await start_once(sandbox, RELAY_KEY, [*program, str(RELAY_PORT), f"{RELAY_MOUNT}/{SOCKET_NAME}"])


def gateway_mount(state: StatePaths) -> Mount:
    """Return the mount by which the agent of a sandbox reaches the gateway."""
    directory = state.gateway.public
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    return Mount(source=str(directory), target=RELAY_MOUNT, read_only=True)


class RolloutModel:
    """The gateway's side of one rollout."""

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
            record: Its agent.
            results: Its results, with the record of its calls.
            parent_results: Those of the parent of a child.
            notes: Directory of its notes on this host, which no sandbox mounts. None where it has no sandbox.
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
    def _endpoint(self) -> Endpoint:
        endpoint, _ = endpoint_of(self._record, self._spec.agent.model, self._spec.agent.base_url)
        assert endpoint is not None  # an agent without one has no access by the gateway
        return endpoint

    @property
    def _retries(self) -> RetryPolicy:
        return RetryPolicy.of(self._spec.run.endpoint_policy)

    @property
    def base_url(self) -> str:
        """URL that the agent is given for its endpoint."""
        return agent_base_url(self._endpoint.api)

    @property
    def token(self) -> str:
        """Key that the agent is given: a token of the gateway's."""
        from benchflow.gateway.client import make_token

        return str(self._notes.note(_TOKEN, {"token": make_token()})["token"])

    def _client(self) -> GatewayClient:
        from benchflow.gateway.client import GatewayClient

        return GatewayClient(self._state)

    async def open(self) -> None:
        """Have the gateway take the rollout on."""
        from benchflow.gateway.process import ensure_gateway

        self._notes.make()
        await ensure_gateway(self._state)
        await self._register()
        await self._client().release(self._spec.id)

    @property
    def socket(self) -> Path:
        """Unix socket of the gateway for agents."""
        return self._state.gateway.public / SOCKET_NAME

    async def _register(self) -> None:
        spec, endpoint = self._spec, self._endpoint
        _, spelled = endpoint_of(self._record, spec.agent.model, spec.agent.base_url)
        await self._client().register(
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
                replay=spec.run.replay or await asyncio.to_thread(self.parent_calls.replay),
                **self.parent_calls.prefix(),
            )
        )

    async def release(self) -> None:
        """Let calls through again."""
        await self._client().release(self._spec.id)

    async def requests(self) -> int:
        """Return how many lines of requests the record has, with nothing under way and nothing let through any more.

        Raises `CallsUnderWayError`. The gateway asks an endpoint again for minutes, longer than one attempt waits.
        """
        client = self._client()
        await client.hold(self._spec.id)
        if not await client.until_quiet(self._spec.id, timeout=QUIET_SEC):
            raise CallsUnderWayError(
                f"a call of the agent's model was still under way after {QUIET_SEC:g} s",
                remedy="branch where the agent has ended its turn",
            )
        return (await client.status(self._spec.id)).requests

    async def begin_turn(self, step: Step) -> tuple[UsageTotals, TurnCalls]:
        """Attribute the calls that come from now on to a turn.

        Returns:
            What was used before the turn, and the calls of the turn: the same for whoever takes it over.
        """
        try:
            status = await self._attribute(step)
        except UnknownRolloutError:
            # A gateway that could not read what it was told; we can say it again.
            await self._register()
            status = await self._attribute(step)
        noted = self._notes.note(f"usage-{step.index}", status.usage.model_dump(mode="json"))
        return UsageTotals.model_validate(noted), self._calls_since(f"calls-{step.index}")

    async def _attribute(self, step: Step) -> GatewayStatus:
        own = self._spec.branch
        # What was its parent's turn leads to no node of its own.
        is_own = own is None or step.index >= own.checkpoint.steps_done
        node = node_id(step.index, self._spec.chain) if is_own else None
        return await self._client().attribute(self._spec.id, node=node, role=step.role, turn=step.index)

    @contextlib.asynccontextmanager
    async def watched(self, calls: TurnCalls, stop: Callable[[], None]) -> AsyncIterator[None]:
        """Call `stop` once: when the rollout has used up its limits, or its endpoint has failed for too long.

        calls: of the turn. Some agents repeat a call that fails for as long as they are let.
        """
        has_limits = self._spec.run.limits != ModelLimits()
        patience_sec = self._retries.total_sec

        async def watch() -> None:
            looks = 0
            while True:
                await asyncio.sleep(_LOOK_EVERY)
                looks += 1
                with contextlib.suppress(BenchFlowError):
                    if has_limits and (await self._client().status(self._spec.id)).budget_exhausted is not None:
                        return stop()
                if looks % _LOOKS_PER_READ == 0:
                    await asyncio.to_thread(calls.read)
                    if calls.failing_sec > patience_sec:
                        return stop()

        task = asyncio.create_task(watch())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def blocked(self) -> Intervals | None:
        """Return when calls waited for the gateway itself; None if it does not answer soon."""
        from benchflow.gateway.client import GatewayClient

        try:
            async with awake_timeout(ANSWER_SEC):
                status = await GatewayClient(self._state, patience=0.0).status(self._spec.id)
        except (GatewayUnavailableError, TimeoutError):
            return None
        except BenchFlowError:
            # It answers the agent, too: nothing waits.
            return ()
        return status.blocked

    @contextlib.asynccontextmanager
    async def explaining(self, session: int) -> AsyncIterator[None]:
        """Replace an agent's error by `ModelEndpointError` if a failed model call caused it. session: its number."""
        calls = self._calls_since(f"opening-{session}")
        try:
            yield
        except AgentError as error:
            silent: dict[str, float] = {}
            with contextlib.suppress(BenchFlowError):
                silent = (await self._client().status(self._spec.id)).silent
            found = await self.endpoint_error(calls, TurnEnd("opening"), silent)
            if not isinstance(found, ModelEndpointError):
                raise
            found.log_tail = "\n".join(text for text in (error.message, error.log_tail) if text)
            raise found from error

    def _calls_since(self, name: str) -> TurnCalls:
        """Return the calls since a moment, which is noted under a name: the same for whoever asks for it later."""
        record = self._results.model_calls
        with storage_errors(record):
            size = record.stat().st_size if record.exists() else 0
        return TurnCalls(record, self._notes.note(name, {"offset": size})["offset"])

    async def endpoint_error(
        self, calls: TurnCalls, end: TurnEnd, silent: Mapping[str, float]
    ) -> BenchFlowError | None:
        """Return the error of a turn whose model was kept from answering; None for any other turn.

        end, silent: as of `TurnCalls.find_problem`.
        """
        await asyncio.to_thread(calls.read)
        problem = calls.find_problem(end, silent)
        if problem is None:
            return None
        agent = self._spec.agent
        base_url = agent.base_url or self._endpoint.upstream
        return endpoint_error(problem, base_url, credential_names(self._endpoint, agent.credentials))

    async def end_turn(self, before: UsageTotals) -> tuple[bool, GatewayStatus, Usage]:
        """Whether no call is under way any more, how it stands, and what the turn used."""
        client = self._client()
        quiet = await client.until_quiet(self._spec.id, timeout=QUIET_SEC)
        status = await client.status(self._spec.id)
        return quiet, status, _used(before, status.usage)

    async def used_in(self, step: Step) -> Usage | None:
        """What a turn has used that nobody ended, with nothing let through any more; None where it had not begun."""
        noted = self._notes.noted(f"usage-{step.index}")
        if noted is None:
            return None
        client = self._client()
        await client.hold(self._spec.id)
        await client.until_quiet(self._spec.id, timeout=QUIET_SEC)
        return _used(UsageTotals.model_validate(noted), (await client.status(self._spec.id)).usage)

    async def hold(self) -> None:
        """Let nothing through until the next session: what an agent left behind must not call on."""
        with contextlib.suppress(UnknownRolloutError):
            await self._client().hold(self._spec.id)

    async def forget(self) -> None:
        """Make the rollout's token nobody's. What this misses the reaper's next round does."""
        client = self._running_client()
        if client is not None:
            with contextlib.suppress(BenchFlowError):
                await client.forget(self._spec.id)

    async def warnings(self) -> list[str]:
        """Return warnings about the rollout's calls: refused requests, calls without a record, estimated tokens."""
        client = self._running_client()
        if client is None:
            return []
        try:
            status = await client.status(self._spec.id)
        except BenchFlowError:
            # Of a rollout whose agent did not get as far as a session it was never told.
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

    def _running_client(self) -> GatewayClient | None:
        """Return a client that gives up soon; None for an agent without a model, and where no gateway runs."""
        if not self._record.takes_model or not self._state.gateway.rollouts.is_dir():
            return None
        from benchflow.gateway.client import GatewayClient
        from benchflow.gateway.process import is_running

        return GatewayClient(self._state, patience=2.0) if is_running(self._state) else None


def _used(before: UsageTotals, now: UsageTotals) -> Usage:
    # A sum that leaves some calls out would be taken for all of them.
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
