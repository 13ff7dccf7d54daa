"""What an agent brings to a rollout: its toolbox, what it is started with, its secrets."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from benchflow.activities.context import WorkerContext
from benchflow.activities.environments import command_env, world_of
from benchflow.activities.models import Model, access_of, gateway_mount
from benchflow.activities.session_files import session_files, sessions_of
from benchflow.checkpoints import world_digests
from benchflow.contracts import base
from benchflow.contracts.activities import Connected, ConnectInput, StepInput
from benchflow.contracts.agent import AgentRecord
from benchflow.contracts.checkpoint import Rung, is_enough
from benchflow.contracts.job import RolloutSpec
from benchflow.contracts.rollout import AgentSession, Failure, ModelAccess
from benchflow.contracts.sandbox import Sandbox, SandboxProvider, SandboxSpec
from benchflow.contracts.task import McpServer, Task
from benchflow.errors import (
    AgentExitError,
    AgentTimeoutError,
    BenchFlowError,
    SessionNotLoadedError,
    UnsupportedFeatureError,
)
from benchflow.planes.agent.acp.connect import Connection, Start, prepare_home, session_rung
from benchflow.planes.agent.acp.notes import SessionFiles
from benchflow.planes.agent.acp.process import RUN_DIRECTORY, Account, find_account, run_mount
from benchflow.planes.agent.acp.talk import AcpTalk
from benchflow.planes.agent.acpx import choices_of
from benchflow.planes.agent.acpx.session import OPENING_TIMEOUT, AcpxSession, end_session
from benchflow.planes.agent.registry import record_for
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
from benchflow.secrets import Redactor, Secrets, agent_references, references
from benchflow.store import storage_errors, write_atomic

NO_KEY = "no-key"
"""What an endpoint of the user's own is given where there is no key: most agents refuse to start without one."""

_OUTFIT = "outfit.json"


def acts_by_itself(record: AgentRecord) -> bool:
    """Whether there is a process that talks, and not the engine that acts."""
    return record.protocol not in ("oracle", "none")


def redactor_for(context: WorkerContext, spec: RolloutSpec, task: Task) -> Redactor:
    """Takes the agent's and the task's secrets out of what comes back from a sandbox."""
    named = {*references(task), *agent_references(spec.agent)}
    if spec.task.environment is not None:
        named |= set(spec.task.environment.manifest.forward_env.keys)
    return Secrets.of_job(context.paths, spec.job_id).redactor(named)


@contextlib.contextmanager
def redacted_errors(redact: Redactor) -> Iterator[None]:
    """What an agent said before it failed ends up in histories."""
    try:
        yield
    except BenchFlowError as error:
        error.message = redact.cut(error.message)
        error.log_tail = redact.cut(error.log_tail) if error.log_tail else None
        error.args = (error.message,)
        raise


def redacted(failure: Failure, redact: Redactor) -> Failure:
    tail = redact.cut(failure.log_tail) if failure.log_tail else None
    return failure.model_copy(update={"message": redact.cut(failure.message), "log_tail": tail})


def without_secrets(session: AgentSession, redact: Redactor) -> AgentSession:
    """A session of an agent that tells what it was given where it tells who it is."""
    told = {name: redact.cut(text) if (text := getattr(session, name)) else None for name in ("agent", "version")}
    return session.model_copy(update=told | {"capabilities": redact.within(session.capabilities)})


class Outfit(base.Model):
    """How a sandbox was made fit for its agent: the C library of its image, and whether it mounts what its host has."""

    libc: Libc
    mounted: bool
    access: ModelAccess

    @classmethod
    def of(cls, directory: Path) -> Outfit:
        """As it was written down. directory: of the sandbox's sessions."""
        return cls.model_validate_json((directory / _OUTFIT).read_bytes())


async def fit_out(
    context: WorkerContext,
    spec: RolloutSpec,
    provider: SandboxProvider,
    wanted: SandboxSpec,
    log: Path,
) -> SandboxSpec:
    """What a sandbox must be started with for its agent to run there: mounts, or an image that has the toolboxes."""
    record = record_for(spec.agent)
    if not acts_by_itself(record):
        return wanted
    libc = await libc_of(provider, wanted.image, context.paths, labels=wanted.labels)
    mounted = provider.capabilities().mounts
    outfit = Outfit(libc=libc, mounted=mounted, access=access_of(spec, mounted=mounted))
    if record.protocol == "acpx" and not outfit.mounted:
        raise UnsupportedFeatureError(
            f"agent {record.name!r} needs a sandbox that mounts directories of its host",
            key="agent",
            remedy="use a Docker daemon of the worker's own host, or the agent without acpx",
        )
    toolboxes = await _toolboxes(context, record, libc)
    directory = context.paths.sessions / wanted.name
    with storage_errors(directory):
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomic(directory / _OUTFIT, outfit.model_dump_json().encode())
    if outfit.mounted:
        files = SessionFiles.below(directory)
        with storage_errors(files.shared):
            files.shared.mkdir(exist_ok=True, mode=0o700)
        mounts = [run_mount(files), *(toolbox.mount for toolbox in toolboxes)]
        if outfit.access == "gateway":
            mounts.append(gateway_mount(context))
        # The world may have asked for one of them already.
        return wanted.model_copy(update={"mounts": tuple(dict.fromkeys([*wanted.mounts, *mounts]))})
    return wanted.model_copy(update={"image": await image_with_toolboxes(provider, wanted.image, toolboxes, log=log)})


async def _toolboxes(context: WorkerContext, record: AgentRecord, libc: Libc) -> list[Toolbox]:
    """What holds an agent's stdio, and what the agent itself needs, if it is not in the image."""
    runtime, own = await ensure_runtime(context.paths, libc), await ensure_toolbox(record, context.paths, libc)
    return [runtime] if own is None else [runtime, own]


def model_of(context: WorkerContext, spec: RolloutSpec, sandbox: Sandbox) -> Model:
    """The gateway's side of a rollout; its notes are the rollout's own, also where several share a sandbox."""
    return Model(context, spec, session_files(context, sandbox).notes / sandbox.ref.episode)


def connection_to(context: WorkerContext, sandbox: Sandbox) -> Connection:
    mirrored = not Outfit.of(sessions_of(context, sandbox)).mounted
    return Connection(sandbox, session_files(context, sandbox), mirrored=mirrored)


async def start_of(
    context: WorkerContext, spec: RolloutSpec, task: Task, sandbox: Sandbox, account: Account
) -> tuple[Start, Toolbox | None]:
    """What the rollout's agent is started with, and its toolbox."""
    record = record_for(spec.agent)
    outfit = Outfit.of(sessions_of(context, sandbox))
    runtime, *own = await _toolboxes(context, record, outfit.libc)
    toolbox = own[0] if own else None
    workspace = sandbox.ref.workdir
    secrets = Secrets.of_job(context.paths, spec.job_id)
    base_url = spec.agent.base_url
    key = next((value for name in spec.agent.credentials if (value := secrets.value(name))), None)
    if outfit.access == "gateway":
        # The key itself stays outside.
        model = model_of(context, spec, sandbox)
        base_url, key = model.base_url, model.token
    files = {name.removeprefix("~/"): key for name in spec.agent.credentials if name.startswith("~/") and key}
    settings = settings_for(
        record,
        home=account.home,
        workspace=workspace,
        model=spec.agent.model,
        base_url=base_url,
        api_key=None if files else key or (NO_KEY if base_url else None),
        effort=spec.agent.effort,
    )
    start = Start(
        record=record,
        settings=settings,
        pump=runtime.program(PUMP),
        argv=(*(toolbox.argv(record) if toolbox else record.launch), *settings.argv),
        account=account,
        cwd=workspace,
        env=command_env(context, spec, task) | settings.env | secrets.resolve(spec.agent.env),
        secret_files=files,
        mcp_servers=[_resolved(server, secrets) for server in task.sandbox.mcp_servers],
        effort=spec.agent.effort,
    )
    return start, toolbox


async def open_model(context: WorkerContext, spec: RolloutSpec, sandbox: Sandbox) -> None:
    """Have the rollout's agents reach their model, if that is by way of the gateway."""
    outfit = Outfit.of(sessions_of(context, sandbox))
    if outfit.access == "gateway":
        # The relay is the sandbox's, whichever rollout comes first.
        whole = await context.sandbox(sandbox.ref.model_copy(update={"episode": ""}))
        await model_of(context, spec, sandbox).open(whole, await ensure_runtime(context.paths, outfit.libc))


def explaining_model_errors(
    context: WorkerContext, spec: RolloutSpec, sandbox: Sandbox, session: int
) -> contextlib.AbstractAsyncContextManager[None]:
    """Return `Model.explaining` of the rollout's model; a context that does nothing for one that it calls directly."""
    if Outfit.of(sessions_of(context, sandbox)).access != "gateway":
        return contextlib.nullcontext()
    return model_of(context, spec, sandbox).explaining(session)


def least_rung(spec: RolloutSpec) -> Rung:
    """How well a child's session must go on."""
    return spec.run.branch.min_session_rung if spec.run.branch is not None else "fresh"


async def go_on_or_open(
    context: WorkerContext, here: ConnectInput, task: Task, sandbox: Sandbox, user: str | int
) -> Connected:
    """The rollout's session of this number: the parent's, in the best way that there is, or a new one.

    Raises `SessionNotLoadedError` where that is less than was asked for.
    """
    layer, record = here.load, record_for(here.spec.agent)
    least = least_rung(here.spec)
    warnings = [] if here.not_replayed is None else [here.not_replayed]
    if layer is None:
        opened = await open_session(context, here, task, sandbox, user)
        return Connected(session=opened, later=session_rung(record, opened, least))
    if layer.rung == "load":
        try:
            opened = await open_session(context, here, task, sandbox, user, layer.session)
            return Connected(session=opened, rung="load", later=session_rung(record, opened, least))
        except (SessionNotLoadedError, UnsupportedFeatureError, AgentTimeoutError) as error:
            warnings.append(f"the agent's session could not be loaded: {error.message}")
        except AgentExitError as error:
            if not here.may_replay:
                raise
            warnings.append(f"the agent ended instead of loading its session: {error.message}")
    if here.may_replay:
        world = await world_of(context, here.spec, task, here.sandbox)
        return Connected(rung="replay", warnings=warnings, digests=await world_digests(sandbox, world))
    if not is_enough("fresh", least):
        raise SessionNotLoadedError(
            "; ".join(warnings) or f"agent {here.spec.agent.name!r} cannot go on with its session here",
            key="branch.min_session_rung",
            remedy="allow `fresh`, or use an agent that loads its sessions",
        )
    opened = await open_session(context, here, task, sandbox, user)
    return Connected(session=opened, rung="fresh", warnings=warnings, later=session_rung(record, opened, least))


async def open_session(
    context: WorkerContext,
    here: ConnectInput,
    task: Task,
    sandbox: Sandbox,
    user: str | int,
    load: AgentSession | None = None,
) -> AgentSession:
    """The rollout's session of this number, with the agent started as it is to act. load: a parent's, to go on with."""
    record, within = record_for(here.spec.agent), here.spec.run.sandbox_setup_timeout
    outfit = Outfit.of(sessions_of(context, sandbox))
    for toolbox_ in await _toolboxes(context, record, outfit.libc):
        await require_runs_in(sandbox, toolbox_)
    account = await find_account(sandbox, user)
    start, toolbox = await start_of(context, here.spec, task, sandbox, account)
    if record.protocol != "acpx":
        opened = await connection_to(context, sandbox).open(here.session, start, within, load=load)
        return opened.model_copy(update={"model_access": outfit.access})
    assert toolbox is not None and load is None
    await prepare_home(sandbox, start)
    name = f"{sandbox.ref.episode}{here.session}.0"
    session = _acpx(context, here.spec, sandbox, start, toolbox, name)
    return AgentSession(
        index=here.session,
        id=await session.open(),
        directory=name,
        user=account.name,
        uid=account.uid,
        gid=account.gid,
        home=account.home,
        cwd=start.cwd,
        agent=record.name,
        version=record.version,
        model_access=outfit.access,
    )


def _acpx(
    context: WorkerContext, spec: RolloutSpec, sandbox: Sandbox, start: Start, toolbox: Toolbox, name: str
) -> AcpxSession:
    from benchflow.planes.agent.acp.opening import acp_server

    return AcpxSession(
        sandbox,
        session_files(context, sandbox).of(name),
        pump=start.pump,
        argv=toolbox.program("acpx"),
        inner=start.argv,
        env=start.env,
        account=start.account,
        cwd=start.cwd,
        permissions=spec.run.permissions,
        choices=choices_of(start.record, start.settings.model, start.effort),
        offers=start.record.session.client,
        servers=[acp_server(server) for server in start.mcp_servers],
        inside=f"{RUN_DIRECTORY}/{name}",
        within=max(OPENING_TIMEOUT, spec.run.sandbox_setup_timeout),
    )


async def talk_to(
    context: WorkerContext, work: StepInput, task: Task, sandbox: Sandbox, skip: Callable[[int], bool]
) -> AcpTalk | AcpxSession:
    """The session of a step, for whoever takes a turn of it. skip: as in `Session.prompt`."""
    session = work.session
    assert session is not None
    if record_for(work.spec.agent).protocol == "acpx":
        account = Account(session.user, session.uid, session.gid, session.home)
        start, toolbox = await start_of(context, work.spec, task, sandbox, account)
        assert toolbox is not None
        return _acpx(context, work.spec, sandbox, start, toolbox, session.directory)
    return AcpTalk(
        sandbox,
        connection_to(context, sandbox),
        session,
        permissions=work.spec.run.permissions,
        answers=work.answers,
        skip=skip,
    )


def _resolved(server: McpServer, secrets: Secrets) -> McpServer:
    tables = {"env": secrets.resolve(server.env), "headers": secrets.resolve(server.headers)}
    return server.model_copy(update=tables)


async def end_agent(
    context: WorkerContext, sandbox: Sandbox, spec: RolloutSpec, session: AgentSession, *, kill: bool = True
) -> None:
    """End the agent's way to a model, and its process with all it started. kill: whether they may be ended."""
    if session.model_access == "gateway":
        await model_of(context, spec, sandbox).hold()
    if not kill:
        return
    if record_for(spec.agent).protocol == "acpx":
        await end_session(sandbox, session_files(context, sandbox).of(session.directory))
    else:
        await connection_to(context, sandbox).process(session.directory).kill()
