"""The model that an agent calls: by way of this host's gateway, which has the real key, records, and counts."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Container, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchflow.activities.context import WorkerContext
from benchflow.contracts.agent import AgentRecord, Endpoint
from benchflow.contracts.gateway import (
    RELAY_MOUNT,
    RELAY_PORT,
    SOCKET_NAME,
    STALL_SEC,
    GatewayStatus,
    ModelLimits,
    Registration,
    Replay,
    RetryPolicy,
    UsageTotals,
    agent_base_url,
)
from benchflow.contracts.job import RolloutSpec
from benchflow.contracts.rollout import ModelAccess, Step, Usage
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
from benchflow.planes.agent.acp.limits import Intervals
from benchflow.planes.agent.acp.notes import Notes
from benchflow.planes.agent.registry import record_for
from benchflow.planes.agent.settings import credential_names, endpoint_of
from benchflow.planes.agent.toolbox import RELAY, Toolbox
from benchflow.planes.sandbox.background import start_once
from benchflow.planes.sandbox.timeouts import awake_timeout
from benchflow.store import storage_errors, write_atomic
from benchflow.trajectories.growth import turn_of
from benchflow.trajectories.journal import iterate_journal
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


def access_of(spec: RolloutSpec, *, mounted: bool) -> ModelAccess:
    """How the rollout's agent reaches its model. mounted: whether its sandbox mounts directories of this host.

    Raises `UnsupportedFeatureError` where something is asked for that only the gateway can do.
    """
    record = record_for(spec.agent)
    if not record.takes_model or not record.endpoints:
        return "none"
    logs_in_itself = any(name.startswith("~/") for name in spec.agent.credentials)
    if mounted and not logs_in_itself:
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


def gateway_mount(context: WorkerContext) -> Mount:
    """What a sandbox must be started with for its agent to reach the gateway."""
    directory = context.paths.gateway.public
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    return Mount(source=str(directory), target=RELAY_MOUNT, read_only=True)


class Model:
    """The gateway's side of one rollout. directory: of its notes on this host, which no sandbox mounts."""

    def __init__(self, context: WorkerContext, spec: RolloutSpec, directory: Path) -> None:
        self._context = context
        self._spec = spec
        self._notes = Notes(directory)
        self._record = record_for(spec.agent)
        self._endpoint = _endpoint(self._record, spec)

    @property
    def _retries(self) -> RetryPolicy:
        return RetryPolicy.of(self._spec.run.endpoint_policy)

    @property
    def base_url(self) -> str:
        """What the agent is told for its endpoint."""
        return agent_base_url(self._endpoint.api)

    @property
    def token(self) -> str:
        """What the agent is told for its key."""
        from benchflow.gateway.client import make_token

        return str(self._notes.note(_TOKEN, {"token": make_token()})["token"])

    def _client(self) -> GatewayClient:
        from benchflow.gateway.client import GatewayClient

        return GatewayClient(self._context.paths)

    async def open(self, sandbox: Sandbox, runtime: Toolbox) -> None:
        """Have the gateway take the rollout on, and its sandbox reach it."""
        from benchflow.gateway.process import ensure_gateway

        self._notes.make()
        await ensure_gateway(self._context.paths)
        await self._register()
        await self._client().release(self._spec.id)
        command = [*runtime.program(RELAY), str(RELAY_PORT), f"{RELAY_MOUNT}/{SOCKET_NAME}"]
        await start_once(sandbox, RELAY_KEY, command)

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
                record=str(self._context.results(spec).model_calls),
                limits=spec.run.limits,
                sampling=spec.run.sampling,
                retries=self._retries,
                # A model that the agent may wait for is no stalled one: whole answers come after minutes of silence.
                stall_sec=max(STALL_SEC, spec.run.agent_idle_timeout_sec),
                requests=endpoint.requests,
                replay=spec.run.replay or await asyncio.to_thread(self._asked_before),
                **self._prefix(),
            )
        )

    def _prefix(self) -> dict[str, Any]:
        """What a session that goes on has to have in front of its first call."""
        own = self._spec.branch
        layer = own.checkpoint.session if own is not None else None
        if own is None or layer is None or not layer.requests or (layer.rung != "load" and own.replays is None):
            return {}
        record = self._context.results_of_parent(self._spec).model_calls
        return {
            "prefix": str(record),
            "prefix_requests": layer.requests,
            "prefix_replayed": own.replays is not None,
        }

    def _asked_before(self) -> Replay | None:
        """What drives a child to where its parent was: its calls of the turns until there, as they were made. Those of
        the turn in which it was asked something are among them where the child has an answer of its own.
        """
        own = self._spec.branch
        if own is None or (own.child.answer is None and own.replays is None):
            return None
        done = own.checkpoint.steps_done
        first = own.replays.steps_done if own.replays is not None else done
        turns = range(first, done + (own.child.answer is not None))
        name = "asked_before.jsonl" if own.replays is None else "session_before.jsonl"
        record = self._context.results(self._spec).model_calls.with_name(name)
        if not record.exists():
            _keep_calls(self._context.results_of_parent(self._spec).model_calls, turns, record)
        if own.replays is None:
            return Replay(record=str(record))
        last = max((line["seq"] for line in iterate_journal(record) if line["type"] == "request"), default=None)
        # Strictly: what is asked otherwise on the way there is asked of nobody.
        return Replay(record=str(record), until=str(last), strict=True) if last is not None else None

    def left_when_there(self) -> int:
        """How many recorded calls a session has not asked for that was driven to where its parent's was: those of the
        turn that comes next, if it is to lead to a question.
        """
        from benchflow.gateway.recording import Recording

        own = self._spec.branch
        if own is None or own.child.answer is None:
            return 0
        record = self._context.results(self._spec).model_calls.with_name("session_before.jsonl")
        calls = Recording(record, self._record.name.removeprefix("acpx/")).calls
        return sum(call.answered and not call.side and call.node == turn_of(own.node) for call in calls)

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
                status = await GatewayClient(self._context.paths, patience=0.0).status(self._spec.id)
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
        record = self._context.results(self._spec).model_calls
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


async def forget_model(context: WorkerContext, spec: RolloutSpec) -> None:
    """The rollout is over: its token is nobody's. What this misses the reaper's next round does."""
    if record_for(spec.agent).takes_model and (context.paths.gateway.rollouts).is_dir():
        from benchflow.gateway.client import GatewayClient
        from benchflow.gateway.process import is_running

        if is_running(context.paths):
            with contextlib.suppress(BenchFlowError):
                await GatewayClient(context.paths, patience=2.0).forget(spec.id)


def _keep_calls(record: Path, turns: Container[int], target: Path) -> None:
    """Of a record, what was asked and answered in some turns."""
    ids, kept = set(), ""
    for line in iterate_journal(record):
        if line["type"] == "request" and line["turn"] in turns:
            ids.add(line["id"])
        if line["id"] in ids:
            kept += json.dumps(line, ensure_ascii=False) + "\n"
    with storage_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(target, kept.encode(), durable=False)


def _endpoint(record: AgentRecord, spec: RolloutSpec) -> Endpoint:
    endpoint, _ = endpoint_of(record, spec.agent.model, spec.agent.base_url)
    assert endpoint is not None  # an agent without one has no access by the gateway
    return endpoint


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
