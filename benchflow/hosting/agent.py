"""The rollout's agent on this host: the toolbox in its sandbox, its sessions, its turns' driver, its end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path

from benchflow.checkpoints import world_digests
from benchflow.contracts.activities import Connected, ConnectInput, StepInput
from benchflow.contracts.base import Model
from benchflow.contracts.checkpoint import Rung, is_enough
from benchflow.contracts.rollout import AgentSession, ModelAccess
from benchflow.contracts.sandbox import SandboxSpec
from benchflow.contracts.task import McpServer
from benchflow.errors import (
    AgentExitError,
    AgentTimeoutError,
    SessionNotLoadedError,
    UnsupportedFeatureError,
)
from benchflow.hosting.hosted import Hosted
from benchflow.hosting.model import RELAY_KEY, access_of, gateway_mount
from benchflow.hosting.out_of_memory import explaining_agent_errors, explaining_losses, session_note
from benchflow.hosting.verifier_files import remove_verifiers
from benchflow.planes.agent.account import prepare_account
from benchflow.planes.agent.acp.connect import Connection, Start, prepare_home, session_rung
from benchflow.planes.agent.acp.notes import SessionFiles
from benchflow.planes.agent.acp.process import RUN_DIRECTORY, Account, find_account, run_mount
from benchflow.planes.agent.acp.talk import AcpTalk
from benchflow.planes.agent.acpx import choices_of
from benchflow.planes.agent.acpx.session import OPENING_TIMEOUT, AcpxSession, end_session
from benchflow.planes.agent.settings import settings_for
from benchflow.planes.agent.toolbox import (
    PUMP,
    Libc,
    Toolbox,
    ensure_runtime,
    ensure_toolbox,
    image_with_toolboxes,
    libc_of,
    require_runs_in,
)
from benchflow.secrets import Secrets
from benchflow.store import storage_errors, write_atomic

NO_KEY = "no-key"
"""Key that a user's own endpoint is given where there is none: most agents refuse to start without one."""

FROM_CHECKPOINT = "from-checkpoint"
"""Mark of a sandbox that began with the files of a checkpoint, where an agent may have acted."""

_RUNTIME_SETUP = "outfit.json"
_BASELINE_MARKED = "baseline"


class RuntimeSetup(Model):
    """How a sandbox was prepared for its agent."""

    libc: Libc
    """C library of its image."""

    mounted: bool
    """Whether it mounts directories of its host."""

    access: ModelAccess
    """How the agent reaches its model."""


async def prepare_for_agent(rollout: Hosted, wanted: SandboxSpec, log: Path) -> SandboxSpec:
    """Return what a sandbox must be started with for its agent to run there: mounts, or an image with the toolboxes.

    Args:
        rollout: The agent's.
        wanted: What it is started with otherwise.
        log: File for what a build prints.

    Raises:
        UnsupportedFeatureError: The agent can't run in such a sandbox.
    """
    if not rollout.has_agent_process:
        return wanted
    provider, record, state = rollout.provider, rollout.record, rollout.host.paths
    libc = await libc_of(provider, wanted.image, state, labels=wanted.labels)
    mounted = provider.capabilities().mounts
    setup = RuntimeSetup(libc=libc, mounted=mounted, access=access_of(rollout.spec, record, mounted=mounted))
    if record.protocol == "acpx" and not mounted:
        raise UnsupportedFeatureError(
            f"agent {record.name!r} needs a sandbox that mounts directories of its host",
            key="agent",
            remedy="use a Docker daemon of the worker's own host, or the agent without acpx",
        )
    toolboxes = await _toolboxes(rollout, libc)
    directory = state.sessions / wanted.name
    with storage_errors(directory):
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomic(directory / _RUNTIME_SETUP, setup.model_dump_json().encode())
    if not mounted:
        image = await image_with_toolboxes(provider, wanted.image, toolboxes, log=log)
        return wanted.model_copy(update={"image": image})
    files = SessionFiles.below(directory)
    with storage_errors(files.shared):
        files.shared.mkdir(exist_ok=True, mode=0o700)
    mounts = [run_mount(files), *(toolbox.mount for toolbox in toolboxes)]
    if setup.access == "gateway":
        mounts.append(gateway_mount(state))
    # The world may have asked for one of them already.
    return wanted.model_copy(update={"mounts": tuple(dict.fromkeys([*wanted.mounts, *mounts]))})


async def _toolboxes(rollout: Hosted, libc: Libc) -> list[Toolbox]:
    """Return the stdio proxy's toolbox and, if the agent is not in the image, the agent's own."""
    state = rollout.host.paths
    runtime, own = await ensure_runtime(state, libc), await ensure_toolbox(rollout.record, state, libc)
    return [runtime] if own is None else [runtime, own]


class HostedAgent:
    """The agent of a rollout, in the sandbox that the rollout is attached to."""

    def __init__(self, rollout: Hosted) -> None:
        self._rollout = rollout

    @cached_property
    def _setup(self) -> RuntimeSetup:
        return RuntimeSetup.model_validate_json((self._rollout.sessions / _RUNTIME_SETUP).read_bytes())

    @property
    def _connection(self) -> Connection:
        rollout = self._rollout
        return Connection(rollout.sandbox, rollout.session_files, mirrored=not self._setup.mounted)

    # --- opening its session -----------------------------------------------------------------------------------

    async def connect(self, wanted: ConnectInput) -> Connected:
        """Prepare the account that the agent acts as, and open its session, if the agent is a process."""
        rollout = self._rollout
        sandbox, record, setup_sec = rollout.sandbox, rollout.record, rollout.spec.run.sandbox_setup_timeout
        # An agent's program acts from its start on, before its first prompt.
        await remove_verifiers(rollout)
        user = await prepare_account(sandbox, record, rollout.task.agent.user, setup_sec)
        if not rollout.has_agent_process:
            await sandbox.mark_baseline()
            return Connected()
        # Before the baseline: the way to the model is there for all sessions.
        await self.open_model()
        # What an agent has started by the time that a worker takes over is no part of the world.
        if not rollout.has_mark(_BASELINE_MARKED):
            is_restored = rollout.has_mark(FROM_CHECKPOINT)
            await sandbox.mark_baseline(is_restored=is_restored)
            if is_restored:
                await sandbox.mark_baseline(RELAY_KEY)
            rollout.mark(_BASELINE_MARKED)
        async with (
            self.explaining_model_errors(wanted.session),
            explaining_losses(sandbox),
            explaining_agent_errors(rollout, session_note(rollout, wanted.session)),
        ):
            connected = await self.resume_or_open(wanted, user)
        if connected.session is None:
            return connected
        return connected.model_copy(update={"session": self._without_secrets(connected.session)})

    async def open_model(self) -> None:
        """Have the rollout's agents reach their model, if that is by way of the gateway."""
        rollout, setup = self._rollout, self._setup
        if setup.access == "gateway":
            # The relay is the sandbox's, whichever rollout comes first.
            whole = await rollout.whole_sandbox()
            await rollout.model.open(whole, await ensure_runtime(rollout.host.paths, setup.libc))

    def explaining_model_errors(self, session: int) -> contextlib.AbstractAsyncContextManager[None]:
        """Return `RolloutModel.explaining`; a context that does nothing for a model that is called directly."""
        if self._setup.access != "gateway":
            return contextlib.nullcontext()
        return self._rollout.model.explaining(session)

    async def resume_or_open(self, wanted: ConnectInput, user: str | int) -> Connected:
        """Resume the parent's session in the best way that there is, or open a new one.

        Raises:
            SessionNotLoadedError: That is less than was asked for.
        """
        layer, least = wanted.load, self._rollout.min_resume_mode
        warnings = [] if wanted.not_replayed is None else [wanted.not_replayed]
        if layer is None:
            return self._connected(await self._open(wanted.session, user))
        if layer.rung == "load":
            try:
                opened = await self._open(wanted.session, user, layer.session)
                return self._connected(opened, rung="load")
            except (SessionNotLoadedError, UnsupportedFeatureError, AgentTimeoutError) as error:
                warnings.append(f"the agent's session could not be loaded: {error.message}")
            except AgentExitError as error:
                if not wanted.may_replay:
                    raise
                warnings.append(f"the agent ended instead of loading its session: {error.message}")
        if wanted.may_replay:
            digests = await world_digests(self._rollout.sandbox, await self._rollout.world())
            return Connected(rung="replay", warnings=warnings, digests=digests)
        if not is_enough("fresh", least):
            raise SessionNotLoadedError(
                "; ".join(warnings) or f"agent {self._rollout.record.name!r} cannot go on with its session here",
                key="branch.min_session_rung",
                remedy="allow `fresh`, or use an agent that loads its sessions",
            )
        return self._connected(await self._open(wanted.session, user), rung="fresh", warnings=warnings)

    def _connected(self, opened: AgentSession, rung: Rung | None = None, warnings: Sequence[str] = ()) -> Connected:
        later = session_rung(self._rollout.record, opened, self._rollout.min_resume_mode)
        return Connected(session=opened, rung=rung, warnings=list(warnings), later=later)

    async def _open(self, index: int, user: str | int, load: AgentSession | None = None) -> AgentSession:
        """Open the rollout's session of this number, with its agent started. load: a parent's, to be resumed."""
        rollout, setup = self._rollout, self._setup
        sandbox, record, setup_sec = rollout.sandbox, rollout.record, rollout.spec.run.sandbox_setup_timeout
        for toolbox_ in await _toolboxes(rollout, setup.libc):
            await require_runs_in(sandbox, toolbox_)
        account = await find_account(sandbox, user)
        start, toolbox = await self._start(account)
        if record.protocol != "acpx":
            opened = await self._connection.open(index, start, setup_sec, load=load)
            return opened.model_copy(update={"model_access": setup.access})
        assert toolbox is not None and load is None
        await prepare_home(sandbox, start)
        name = f"{sandbox.ref.episode}{index}.0"
        session = acpx_session(rollout, start, toolbox, name)
        return AgentSession(
            index=index,
            id=await session.open(),
            directory=name,
            user=account.name,
            uid=account.uid,
            gid=account.gid,
            home=account.home,
            cwd=start.cwd,
            agent=record.name,
            version=record.version,
            model_access=setup.access,
        )

    async def _start(self, account: Account) -> tuple[Start, Toolbox | None]:
        """Return what the agent is started with, and its toolbox."""
        rollout, setup, agent = self._rollout, self._setup, self._rollout.spec.agent
        record, secrets = rollout.record, rollout.secrets
        runtime, *own = await _toolboxes(rollout, setup.libc)
        toolbox = own[0] if own else None
        workspace = rollout.sandbox.ref.workdir
        base_url = agent.base_url
        key = next((value for name in agent.credentials if (value := secrets.value(name))), None)
        if setup.access == "gateway":
            # The key itself stays outside.
            base_url, key = rollout.model.base_url, rollout.model.token
        files = {name.removeprefix("~/"): key for name in agent.credentials if name.startswith("~/") and key}
        settings = settings_for(
            record,
            home=account.home,
            workspace=workspace,
            model=agent.model,
            base_url=base_url,
            api_key=None if files else key or (NO_KEY if base_url else None),
            effort=agent.effort,
        )
        start = Start(
            record=record,
            settings=settings,
            pump=runtime.program(PUMP),
            argv=(*(toolbox.argv(record) if toolbox else record.launch), *settings.argv),
            account=account,
            cwd=workspace,
            env=rollout.env() | settings.env | secrets.resolve(agent.env),
            secret_files=files,
            mcp_servers=[_resolved(server, secrets) for server in rollout.task.sandbox.mcp_servers],
            effort=agent.effort,
        )
        return start, toolbox

    def _without_secrets(self, session: AgentSession) -> AgentSession:
        """Return a session without secrets: an agent may print what it was given where it tells who it is."""
        redact = self._rollout.redact
        told = {name: redact.cut(text) if (text := getattr(session, name)) else None for name in ("agent", "version")}
        return session.model_copy(update=told | {"capabilities": redact.within(session.capabilities)})

    # --- its turns and its end ---------------------------------------------------------------------------------

    async def turn_driver(self, work: StepInput, skip: Callable[[int], bool]) -> AcpTalk | AcpxSession:
        """Return what drives a turn in the session of a step. skip: as in `Session.prompt`."""
        rollout, session = self._rollout, work.session
        assert session is not None
        if rollout.record.protocol == "acpx":
            start, toolbox = await self._start(Account(session.user, session.uid, session.gid, session.home))
            assert toolbox is not None
            return acpx_session(rollout, start, toolbox, session.directory)
        return AcpTalk(
            rollout.sandbox,
            self._connection,
            session,
            permissions=rollout.spec.run.permissions,
            answers=work.answers,
            skip=skip,
        )

    async def end(self, session: AgentSession, *, kill: bool = True) -> None:
        """End the agent's way to its model, and its process with all it started. kill: whether they may be ended."""
        rollout = self._rollout
        if (model := rollout.gateway_model(session)) is not None:
            await model.hold()
        if not kill:
            return
        if rollout.record.protocol == "acpx":
            await end_session(rollout.sandbox, rollout.session_files.of(session.directory))
        else:
            await self._connection.process(session.directory).kill()


def acpx_session(rollout: Hosted, start: Start, toolbox: Toolbox, name: str) -> AcpxSession:
    """Return the session of an agent behind acpx. name: of its files."""
    from benchflow.planes.agent.acp.opening import acp_server

    return AcpxSession(
        rollout.sandbox,
        rollout.session_files.of(name),
        pump=start.pump,
        argv=toolbox.program("acpx"),
        inner=start.argv,
        env=start.env,
        account=start.account,
        cwd=start.cwd,
        permissions=rollout.spec.run.permissions,
        choices=choices_of(start.record, start.settings.model, start.effort),
        offers=start.record.session.client,
        servers=[acp_server(server) for server in start.mcp_servers],
        inside=f"{RUN_DIRECTORY}/{name}",
        within=max(OPENING_TIMEOUT, rollout.spec.run.sandbox_setup_timeout),
    )


def _resolved(server: McpServer, secrets: Secrets) -> McpServer:
    tables = {"env": secrets.resolve(server.env), "headers": secrets.resolve(server.headers)}
    return server.model_copy(update=tables)
