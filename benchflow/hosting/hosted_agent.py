"""Prepare a rollout's agent and its sandbox on this host, open or resume its sessions, and end it."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from benchflow.checkpoints import digest_world
from benchflow.contracts.activities import Connected, ConnectInput
from benchflow.contracts.agent import AgentPlace, ModelRoute, RolloutAgent, Session
from benchflow.contracts.resuming import Rung, is_enough
from benchflow.contracts.rollout_records import AgentSession, ModelAccess
from benchflow.contracts.sandbox import Sandbox, SandboxSpec
from benchflow.contracts.sandbox_config import McpServer
from benchflow.errors import AgentExitError, AgentTimeoutError, SessionNotLoadedError, UnsupportedFeatureError
from benchflow.hosting.hosted import Hosted
from benchflow.hosting.model import RELAY_KEY, choose_access, make_gateway_mount, run_relay
from benchflow.hosting.out_of_memory import explain_agent_errors, explain_losses, make_session_note
from benchflow.hosting.verifier_files import remove_verifiers
from benchflow.planes.agent import attribute_errors, create_agent
from benchflow.planes.agent.account import prepare_account
from benchflow.secrets import Secrets

FROM_CHECKPOINT = "from-checkpoint"
"""Mark of a sandbox that started from a checkpoint, in whose files an agent may have acted."""

_BASELINE_MARKED = "baseline"
"""Mark of a sandbox whose processes were recorded as the world's, before its first agent started."""


async def prepare_for_agent(rollout: Hosted, wanted: SandboxSpec, log: Path) -> SandboxSpec:
    """Return the specification of a sandbox with the additions that the rollout's agent needs, such as mounts.

    Args:
        rollout: The rollout.
        wanted: Specification without the agent; returned as it is for a rollout without one.
        log: File for the output of builds.

    Raises:
        UnsupportedFeatureError: The agent can't act in such a sandbox.
    """
    if not rollout.has_agent:
        return wanted
    agent = HostedAgent(rollout).make_agent(wanted.name)
    with attribute_errors(rollout.record):
        wanted = await agent.prepare(wanted, log)
    if rollout.record.runs_inside and agent.place.access == "gateway":
        mounts = (*wanted.mounts, make_gateway_mount(rollout.host.paths))
        wanted = wanted.model_copy(update={"mounts": tuple(dict.fromkeys(mounts))})
    return wanted


class HostedAgent:
    """The agent of a rollout, in the sandbox that the rollout is attached to.

    Args:
        rollout: The rollout. Only `placed` and `access` can be used before it is attached.
    """

    def __init__(self, rollout: Hosted) -> None:
        """Make it."""
        self._rollout = rollout

    @cached_property
    def access(self) -> ModelAccess:
        """Return how the agent reaches its model: `gateway`, `direct` or `none`.

        Raises `UnsupportedFeatureError` if the job needs the gateway, and the agent can't use it.
        """
        rollout = self._rollout
        has_socket = not rollout.record.runs_inside or rollout.provider.capabilities().mounts
        return choose_access(rollout.spec, rollout.record, has_socket=has_socket)

    # --- its place ---------------------------------------------------------------------------------------------

    def make_agent(self, sandbox: str, started: Sandbox | None = None, user: str | int = "root") -> RolloutAgent:
        """Return the agent for a sandbox, with model route, environment and secrets. Nothing is started.

        Args:
            sandbox: Name of the sandbox.
            started: The sandbox; None before it is started.
            user: User as whom the agent acts.
        """
        rollout, spec = self._rollout, self._rollout.spec
        secrets = rollout.secrets
        return create_agent(
            AgentPlace(
                record=rollout.record,
                provider=rollout.provider,
                state=rollout.host.paths.root,
                directory=rollout.host.paths.sessions / sandbox,
                access=self.access,
                route=self._make_route,
                run_relay=self._run_relay,
                started=started,
                user=user,
                env=rollout.make_env(),
                agent_env=secrets.resolve(spec.agent.env),
                mcp_servers=tuple(_resolve_server(server, secrets) for server in rollout.task.sandbox.mcp_servers),
                permissions=spec.run.permissions,
                setup_sec=spec.run.sandbox_setup_timeout,
                job=spec.job_id,
            )
        )

    def _make_attached(self, user: str | int = "root") -> RolloutAgent:
        return self.make_agent(self._rollout.ref.name, self._rollout.sandbox, user)

    def _make_route(self) -> ModelRoute:
        model, agent, secrets = self._rollout.model, self._rollout.spec.agent, self._rollout.secrets
        key = next((value for name in agent.credentials if (value := secrets.value(name))), None)
        if self.access == "gateway":
            # The key itself stays outside.
            inside, socket = self._rollout.record.runs_inside, model.socket
            return ModelRoute(agent.model, model.base_url, model.token, agent.effort, None if inside else socket)
        files = {name.removeprefix("~/"): key for name in agent.credentials if name.startswith("~/") and key}
        return ModelRoute(agent.model, agent.base_url, key, agent.effort, login_files=files)

    async def _run_relay(self, program: Sequence[str]) -> None:
        # In a shared sandbox the relay belongs to the sandbox, not to the rollout that starts it.
        await run_relay(await self._rollout.attach_whole_sandbox(), program)

    # --- opening its session -----------------------------------------------------------------------------------

    async def connect(self, wanted: ConnectInput) -> Connected:
        """Prepare the agent's account and its way to the model, and open its session, or resume the parent's.

        A retry finds a session that an earlier attempt opened. Without an agent, only the account is prepared.

        Args:
            wanted: Index of the session, and the parent's session that is to be resumed.

        Returns:
            The session and its resume mode, or the request to replay the parent's session.

        Raises:
            SessionNotLoadedError: The session can't be resumed in any mode that the job allows.
            AgentError: The agent does not start, or does not open a session.
            SandboxMemoryError: The agent was killed at the memory limit.
        """
        rollout = self._rollout
        sandbox, record, setup_sec = rollout.sandbox, rollout.record, rollout.spec.run.sandbox_setup_timeout
        # Before the session: an agent's program may act from its start on, before its first prompt.
        await remove_verifiers(rollout)
        user = await prepare_account(sandbox, record, rollout.task.agent.user, setup_sec)
        if not rollout.has_agent:
            await sandbox.mark_baseline()
            return Connected()
        agent = self._make_attached(user)
        if self.access == "gateway":
            await rollout.model.open()
        # Before the baseline: the relay belongs to all sessions, and is not ended with this one.
        with attribute_errors(record):
            await agent.set_up()
        # Only once: when a later attempt comes here, processes of the agent may run, which are no part of the world.
        if not rollout.has_mark(_BASELINE_MARKED):
            is_restored = rollout.has_mark(FROM_CHECKPOINT)
            await sandbox.mark_baseline(is_restored=is_restored)
            if is_restored:
                await sandbox.mark_baseline(RELAY_KEY)
            rollout.mark(_BASELINE_MARKED)
        async with (
            self.explain_model_errors(wanted.session),
            explain_losses(sandbox),
            explain_agent_errors(rollout, make_session_note(rollout, wanted.session)),
        ):
            with attribute_errors(record):
                connected = await self._restore_or_open(agent, wanted)
        if connected.session is None:
            return connected
        return connected.model_copy(update={"session": self._without_secrets(connected.session)})

    def explain_model_errors(self, session: int) -> contextlib.AbstractAsyncContextManager[None]:
        """Return a context that explains errors while a session opens by failed model calls: `RolloutModel.explaining`.

        It does nothing for an agent whose calls do not pass the gateway.

        Args:
            session: Index of the session.
        """
        if self.access != "gateway":
            return contextlib.nullcontext()
        return self._rollout.model.explain_errors(session)

    async def _restore_or_open(self, agent: RolloutAgent, wanted: ConnectInput) -> Connected:
        """Resume the parent's session in the best mode that works, or open a new session if there is none to resume.

        Raises:
            SessionNotLoadedError: The job requires a better mode.
        """
        layer, least = wanted.load, self._rollout.min_resume_mode
        warnings = [] if wanted.not_replayed is None else [wanted.not_replayed]
        if layer is None:
            return self._make_connected(agent, await agent.open(wanted.session))
        if layer.rung == "load":
            try:
                opened = await agent.restore(wanted.session, layer.session, layer.captured)
                return self._make_connected(agent, opened, rung="load")
            except (SessionNotLoadedError, UnsupportedFeatureError, AgentTimeoutError) as error:
                warnings.append(f"the agent's session could not be loaded: {error.message}")
            except AgentExitError as error:
                if not wanted.may_replay:
                    raise
                warnings.append(f"the agent ended instead of loading its session: {error.message}")
        if wanted.may_replay:
            digests = await digest_world(self._rollout.sandbox, await self._rollout.open_world())
            return Connected(rung="replay", warnings=warnings, digests=digests)
        if not is_enough("fresh", least):
            raise SessionNotLoadedError(
                "; ".join(warnings) or f"agent {self._rollout.record.name!r} cannot go on with its session here",
                key="branch.min_session_rung",
                remedy="allow `fresh`, or use an agent that loads its sessions",
            )
        return self._make_connected(agent, await agent.open(wanted.session), rung="fresh", warnings=warnings)

    def _make_connected(
        self, agent: RolloutAgent, opened: AgentSession, rung: Rung | None = None, warnings: Sequence[str] = ()
    ) -> Connected:
        later = agent.rung(opened, self._rollout.min_resume_mode)
        return Connected(session=opened, rung=rung, warnings=list(warnings), later=later)

    def _without_secrets(self, session: AgentSession) -> AgentSession:
        """Return a session without secrets, which an agent may print in its name, version or capabilities."""
        redact = self._rollout.redact
        told = {name: redact.cut(text) if (text := getattr(session, name)) else None for name in ("agent", "version")}
        return session.model_copy(update=told | {"capabilities": redact.within(session.capabilities)})

    # --- its sessions and its end ------------------------------------------------------------------------------

    async def attach_session(self, held: AgentSession) -> Session:
        """Return a handle of a session that `connect` has opened, in this process or another one."""
        with attribute_errors(self._rollout.record):
            return await self._make_attached(held.user).session(held)

    def find_resume_mode(self, held: AgentSession) -> Rung:
        """Return the best mode in which a session can be resumed in a copy of its world."""
        return self._make_attached(held.user).rung(held, self._rollout.min_resume_mode)

    async def end(self, held: AgentSession, *, kill: bool = True) -> None:
        """Hold the agent's model calls, and end its session with all processes that it started.

        Args:
            held: The session.
            kill: Whether processes are ended; otherwise only the model calls are held.
        """
        if (model := self._rollout.find_gateway_model(held)) is not None:
            await model.hold()
        if kill:
            with attribute_errors(self._rollout.record):
                await self._make_attached(held.user).end(held)


def _resolve_server(server: McpServer, secrets: Secrets) -> McpServer:
    tables = {"env": secrets.resolve(server.env), "headers": secrets.resolve(server.headers)}
    return server.model_copy(update=tables)
