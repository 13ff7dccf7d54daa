"""Going on with an agent's session in a copy of its world: real copies, real agents, and a model that is a script."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from support.loaded_worlds import KEY, World, Worlds, end_gateway, worlds_of

from benchflow.contracts.agent_record import AgentRecord, SessionTraits
from benchflow.contracts.rollout_records import AgentSession
from benchflow.errors import AgentExitError, AgentTimeoutError, SessionNotLoadedError, UnsupportedFeatureError
from benchflow.paths import StatePaths
from benchflow.planes.agent.acp.connect import MAX_STARTS, find_resume_mode
from benchflow.planes.agent.registry import find_agent
from benchflow.testing.waiting import until

pytestmark = pytest.mark.local

SELDOM = [pytest.mark.agents, pytest.mark.long]
REAL = [
    pytest.param("claude-agent-acp", "session/resume", marks=SELDOM),
    pytest.param("claude-agent-acp", "session/load", marks=SELDOM),
    pytest.param("opencode", "session/resume", marks=SELDOM),
    pytest.param("opencode", "session/load", marks=SELDOM),
    pytest.param("codex-acp", "session/resume", marks=SELDOM),
    pytest.param("codex-acp", "session/load", marks=SELDOM),
]

SMALL = """import io, json, os, sys, time
how = sys.argv[1]

def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

def say(text):
    update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
    send(method="session/update", params={"sessionId": "s-1", "update": update})

for line in sys.stdin:
    asked = json.loads(line)
    method, number = asked.get("method"), asked.get("id")
    if method == "initialize":
        send(id=number, result={"protocolVersion": 1, "agentCapabilities": {"loadSession": how != "cannot"}})
    elif method == "session/new":
        send(id=number, result={"sessionId": "s-2"})
    elif method == "session/load":
        if how == "exits":
            sys.exit("there is no such session")
        say("history")
        while how == "waits" and not os.path.exists("/work/go"):
            time.sleep(0.01)
        while how == "hangs":
            time.sleep(600)
        # Written at once, so that nothing depends on when the rest comes.
        sys.stdout = io.StringIO()
        send(id=number, result=None)
        say("late history")
        sys.stdout, said = sys.__stdout__, sys.stdout.getvalue()
        print(said, end="", flush=True)
    elif method == "session/prompt":
        say("new")
        send(id=number, result={"stopReason": "end_turn"})
"""


@pytest.fixture(scope="module")
def paths(kept: StatePaths, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StatePaths]:
    """A state directory with a gateway, and with the toolboxes that all share."""
    state = StatePaths(tmp_path_factory.mktemp("state"))
    state.toolboxes.symlink_to(kept.toolboxes)
    yield state
    asyncio.run(end_gateway(state))


@pytest_asyncio.fixture
async def worlds(paths: StatePaths, tmp_path: Path) -> AsyncIterator[Worlds]:
    """Of the policy agent."""
    async with worlds_of("policy", paths, tmp_path / "worlds") as made:
        yield made


async def parent_in(worlds: Worlds) -> World:
    """A world in which a turn is over."""
    parent = await worlds.first()
    await parent.open()
    assert (await parent.turn(0, "Please note pear")).reason == "end_turn"
    return parent


# --- the session goes on


async def test_a_session_goes_on_in_a_copy_and_either_side_knows_nothing_of_the_other(worlds: Worlds) -> None:
    await check_copy(worlds, "session/resume")


@pytest.mark.long
async def test_a_session_that_is_told_again_goes_on_in_a_copy(paths: StatePaths, tmp_path: Path) -> None:
    async with worlds_of(by(find_agent("policy"), "session/load"), paths, tmp_path / "worlds") as worlds:
        await check_copy(worlds, "session/load")


@pytest.mark.parametrize(("agent", "method"), REAL)
async def test_a_session_of_a_real_agent_goes_on_in_a_copy(
    agent: str, method: str, paths: StatePaths, tmp_path: Path
) -> None:
    async with worlds_of(by(find_agent(agent), method), paths, tmp_path / "worlds") as worlds:
        await check_copy(worlds, method)


def by(record: AgentRecord, method: str) -> AgentRecord:
    """The agent, asked to go on with a session in this way."""
    return record.model_copy(
        update={"session": record.session.model_copy(update={"resume": method == "session/resume"})}
    )


async def check_copy(worlds: Worlds, method: str) -> None:
    parent = await parent_in(worlds)
    child = await worlds.copy(parent, "child")
    loaded = await child.open(parent.session)
    assert parent.session is not None
    assert (loaded.id, loaded.home, loaded.cwd) == (parent.session.id, parent.session.home, parent.session.cwd)
    for world, word in ((child, "quince"), (parent, "medlar")):
        assert (await world.turn(1, f"Please note {word}")).reason == "end_turn"
    # Codex warns of a model that it does not know.
    said = [re.sub(r"Warning:.*\s*", "", world.texts()) for world in (child, parent)]
    assert said == ["I note quince.quince is noted.", "I note pear.pear is noted.I note medlar.medlar is noted."]
    assert (await child.notes(), await parent.notes()) == (["pear", "quince"], ["pear", "medlar"])
    assert methods(child)[:2] == ["initialize", method]
    # What the agent told again of the first turn is in no turn.
    told = json.dumps([line for line in child.lines if line["type"] in ("user_message", "agent_message", "tool_call")])
    assert "quince" in told and "pear" not in told
    status = await child.status()
    assert (status.prefix, status.prefix_divergence) == ("equal", None)
    assert "medlar" not in json.dumps(child.record())
    assert "quince" not in json.dumps(parent.record())
    # Each is on its own account, and with its own key.
    assert (len(parent.bodies()), len(child.bodies())) == (4, 2)
    assert {call.headers.get("authorization") or call.headers.get("x-api-key") for call in worlds.model.main_calls} <= {
        f"Bearer {KEY}",
        KEY,
    }
    await check_tokens(parent, child)


async def check_tokens(parent: World, child: World) -> None:
    """The parent's token is nowhere in the copy: neither in files nor with a process."""
    find = (
        'grep -rlF -- "$1" /home /root /work /dev/shm 2>/dev/null; grep -lF -- "$1" /proc/[0-9]*/environ 2>/dev/null; :'
    )
    found = await child.sandbox.control(find, parent.registration.token)
    assert found.stdout.split() == [], found.stdout
    with_own = await child.sandbox.control(find, child.registration.token)
    assert "environ" in with_own.stdout


@pytest.mark.long
async def test_copies_of_a_copy_go_on_too_with_other_models(worlds: Worlds) -> None:
    parent = await parent_in(worlds)
    child = await worlds.copy(parent, "child", model="scripted-2")
    await child.open(parent.session)
    await child.turn(1, "Please note quince")
    grandchild = await worlds.copy(child, "grandchild", model="scripted-3")
    await grandchild.open(child.session)
    await grandchild.turn(2, "Please note medlar")
    assert await grandchild.notes() == ["pear", "quince", "medlar"]
    for world, model in ((child, "scripted-2"), (grandchild, "scripted-3")):
        assert {body["model"] for body in world.bodies()} == {model}
        assert (await world.status()).prefix == "equal"
    assert len(grandchild.bodies()[-1]["messages"]) == 12


@pytest.mark.long
async def test_a_session_that_is_not_the_parents_any_more_is_told_by_its_first_call(worlds: Worlds) -> None:
    parent = await parent_in(worlds)
    child = await worlds.copy(parent, "child")
    await child.sandbox.control("sed -i 's/pear is noted/plum is noted/' /home/agent/.policy/sessions/*.json")
    await child.open(parent.session)
    assert (await child.turn(1, "Please note quince")).reason == "end_turn"
    status = await child.status()
    assert status.prefix == "different"
    assert status.prefix_divergence is not None
    assert "plum is noted" in status.prefix_divergence.diff


async def test_what_an_agent_finds_in_its_home_is_the_rollouts_and_its_sessions_are_as_they_were(
    worlds: Worlds,
) -> None:
    def told(world: World, what: str) -> None:
        settings = replace(world.start.settings, files={".policy/config.json": what})
        world.start = replace(world.start, settings=settings, secret_files={".policy/key": f"key of the {what}"})

    async def found(world: World) -> tuple[bytes, bytes, str]:
        home = world.start.account.home
        sessions = await world.sandbox.control("cat -- /home/agent/.policy/sessions/*")
        read = world.sandbox.read_bytes
        return await read(f"{home}/.policy/config.json"), await read(f"{home}/.policy/key"), sessions.stdout

    parent = await worlds.first()
    told(parent, "parent")
    await parent.open()
    await parent.turn(0, "Please note pear")
    child = await worlds.copy(parent, "child")
    with pytest.raises(FileNotFoundError):
        await child.sandbox.read_bytes("/home/agent/.policy/key")
    told(child, "child")
    await child.open(parent.session)
    config, key, sessions = await found(child)
    assert (config, key) == (b"child", b"key of the child")
    assert (await found(parent)) == (b"parent", b"key of the parent", sessions)


@pytest.mark.long
async def test_what_was_said_in_the_parent_is_not_heard_where_the_files_of_sessions_are_the_sandboxs_own(
    worlds: Worlds,
) -> None:
    worlds.mirrored = True
    parent = await parent_in(worlds)
    child = await worlds.copy(parent, "child")
    assert b"pear is noted" in await child.sandbox.read_bytes("/run/benchflow/agent/0.0/out")
    await child.open(parent.session)
    await child.turn(1, "Please note quince")
    assert child.texts() == "I note quince.quince is noted."
    assert (await child.status()).prefix == "equal"


# --- how agents may behave


def small(how: str) -> AgentRecord:
    return AgentRecord(
        name="small",
        description="Speaks as much as it takes to load a session.",
        protocol="acp",
        user="root",
        launch=("python3", "/opt/small.py", how),
        session=SessionTraits(rung="load"),
    )


SmallWorld = Callable[[str], World]
"""A world in which a session `s-1` is believed to have been held, by how its agent behaves."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def small_world(paths: StatePaths, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[SmallWorld]:
    """One sandbox for all of them, in which each has a session of its own."""
    async with worlds_of(small("is late"), paths, tmp_path_factory.mktemp("worlds")) as worlds:
        world = await worlds.first()
        await world.sandbox.write_file("/opt/small.py", SMALL)
        numbers = itertools.count()

        def of(how: str) -> World:
            record = small(how)
            start = replace(world.start, record=record, argv=record.launch)
            return replace(world, start=start, session=None, lines=[], index=next(numbers))

        yield of


in_small_world = pytest.mark.asyncio(loop_scope="module")


async def begun(world: World) -> None:
    """Begin to load a session, and go away when the agent is at it."""
    out = world.files.shared / f"{world.index}.0" / "out"

    async def is_at_it() -> bool:
        return out.exists() and "history" in out.read_text()

    first = asyncio.create_task(world.open(held(world)))
    await until(is_at_it)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)


def held(world: World, **more: Any) -> AgentSession:
    account = world.start.account
    given = {"user": account.name, "uid": account.uid, "gid": account.gid, "home": account.home, "cwd": "/work"}
    return AgentSession(index=world.index, id="s-1", directory=f"{world.index}.0", **(given | more))


def methods(world: World) -> list[str]:
    return [message["method"] for message in world.sent() if "method" in message]


@in_small_world
async def test_history_belongs_to_no_turn_even_if_it_comes_late(small_world: SmallWorld) -> None:
    world = small_world("is late")
    assert (await world.open(held(world))).id == "s-1"
    await world.turn(1, "go")
    assert world.texts() == "new"
    assert methods(world) == ["initialize", "session/load", "session/prompt"]


@in_small_world
async def test_a_worker_that_takes_over_while_a_session_is_loaded_asks_nothing_again(small_world: SmallWorld) -> None:
    world = small_world("waits")
    await world.sandbox.control("rm -f /work/go")
    await begun(world)
    await world.sandbox.control("touch /work/go")
    assert (await world.open(held(world))).id == "s-1"
    assert (await world.open(held(world))).id == "s-1"
    await world.turn(1, "go")
    assert world.texts() == "new"
    assert methods(world) == ["initialize", "session/load", "session/prompt"]


async def test_a_session_that_an_agent_does_not_know_is_told_and_a_new_one_may_follow(worlds: Worlds) -> None:
    parent = await parent_in(worlds)
    child = await worlds.copy(parent, "child")
    await child.sandbox.control("rm -r /home/agent/.policy/sessions")
    with pytest.raises(SessionNotLoadedError, match="there is no session") as caught:
        await child.open(parent.session)
    assert caught.value.remedy
    fresh = await child.open()
    assert parent.session is not None
    assert (fresh.directory, fresh.id == parent.session.id) == ("0.1", False)
    await child.turn(1, "Please note quince")
    assert child.texts() == "I note quince.quince is noted."
    status = await child.status()
    assert status.prefix == "different"


@in_small_world
async def test_an_agent_that_loads_nothing_is_not_asked(small_world: SmallWorld) -> None:
    world = small_world("cannot")
    with pytest.raises(SessionNotLoadedError, match="loads no sessions"):
        await world.open(held(world))
    assert methods(world) == ["initialize"]
    session = await world.open()
    assert (session.id, find_resume_mode(world.start.record, session)) == ("s-2", "replay")


@pytest.mark.long
@in_small_world
async def test_a_load_that_takes_too_long_is_ended_and_a_new_session_may_follow(small_world: SmallWorld) -> None:
    world = small_world("hangs")
    # Its start is not what takes too long.
    await begun(world)
    with pytest.raises(AgentTimeoutError, match="session/load"):
        await world.open(held(world), within=1.0)
    left = await world.sandbox.exec(["pgrep", "-f", "small.py hangs"], cwd="/")
    assert left.stdout == ""
    assert (await world.open()).directory == f"{world.index}.1"


@pytest.mark.long
@in_small_world
async def test_an_agent_that_ends_instead_of_loading_is_started_again_and_then_given_up(
    small_world: SmallWorld,
) -> None:
    world = small_world("exits")
    with pytest.raises(AgentExitError, match="exit status 1"):
        await world.open(held(world))
    assert methods(world) == ["initialize", "session/load"] * MAX_STARTS


# --- what is refused


@in_small_world
async def test_what_cannot_be_loaded_is_refused_before_anything_is_started(small_world: SmallWorld) -> None:
    world = small_world("is late")
    own = world.start
    for agent, says in (("gemini", "destructive"), ("acpx/claude-agent-acp", "acpx"), ("openclaw", "openclaw")):
        world.start = replace(own, record=find_agent(agent))
        with pytest.raises(UnsupportedFeatureError, match=says) as caught:
            await world.open(held(world))
        assert caught.value.remedy == f"allow the rung {find_agent(agent).session.rung!r}"
    world.start = own
    for moved in ({"home": "/elsewhere"}, {"cwd": "/elsewhere"}):
        with pytest.raises(SessionNotLoadedError, match="/elsewhere"):
            await world.open(held(world, **moved))
    assert not (world.files.notes / f"{world.index}.0").exists()
