"""Waiting until a world is healthy, in real sandboxes."""

from __future__ import annotations

import re
import time

import pytest
from support.small_worlds import PORT, Fresh, MakeWorld, OnDocker, OnLocal, Worlds, ask, notes, running

from benchflow.contracts.environment import Readiness, Service
from benchflow.contracts.sandbox import Sandbox
from benchflow.errors import ReadinessError, ServiceDiedError
from benchflow.testing.waiting import until


async def listens(sandbox: Sandbox, port: int) -> bool:
    script = f"import socket; socket.create_connection(('localhost', {port}))"
    return (await sandbox.exec(["python3", "-I", "-S", "-c", script], cwd="/")).return_code == 0


class ReadinessOfAWorld(Worlds):
    async def test_a_world_is_ready_when_all_of_it_is_healthy(self, place: Sandbox, world: MakeWorld) -> None:
        slow, absent = notes("slow", 9102, "--late 0.3"), Service(name="absent", command="absent", port=9199)
        mine = world(notes(), slow, absent, readiness=Readiness(tcp=(PORT,)))
        await mine.start()
        ready = await mine.readiness()
        assert [(probe.target, probe.healthy, probe.answer) for probe in ready.probes] == [
            (f"http://localhost:{PORT}/health", True, "HTTP 200"),
            ("http://localhost:9102/health", True, "HTTP 200"),
            (f"tcp://localhost:{PORT}", True, "connected"),
        ]
        assert [status.state for status in ready.services] == ["running", "running", "left_out"]
        assert 0 < ready.seconds < 300
        # They count from the world's beginning, whenever it is asked.
        assert (await mine.readiness()).seconds > ready.seconds
        assert ready.ports == {}
        assert await ask(place, port=9102) == []

    async def test_ports_are_told_as_this_host_reaches_them(self, fresh: Fresh, world: MakeWorld) -> None:
        sandbox = await fresh(network_mode="public", ports=(PORT, 9102))
        mine = world(notes(), sandbox=sandbox, ports=(9102,))
        await mine.start()
        ready = await mine.readiness()
        assert set(ready.ports) == {PORT, 9102}
        host, port = await sandbox.expose_port(PORT)
        assert ready.ports[PORT] == f"{host}:{port}"

    async def test_a_service_that_is_never_healthy_is_told_with_all_answers_and_logs(
        self, place: Sandbox, world: MakeWorld
    ) -> None:
        mine = world(notes(), notes("ill", 9102, "--ill"), readiness=Readiness(tcp=(9103,), timeout_sec=2))
        await mine.start()
        # What they answer is the question, and not how soon they can.
        await until(lambda: listens(place, PORT))
        await until(lambda: listens(place, 9102))
        began = time.monotonic()
        with pytest.raises(ReadinessError, match=r"not healthy in 2 s: 2 of 3 probes failed") as caught:
            await mine.readiness()
        assert time.monotonic() - began >= 2
        said = (caught.value.log_tail or "").splitlines()
        assert said[0] == f"http://localhost:{PORT}/health: HTTP 200"
        # On a busy machine it may not be heard in time.
        assert re.match("http://localhost:9102/health: (HTTP 503|timed out)", said[1])
        assert said[2] == "tcp://localhost:9103: connection refused"
        assert "notes:" in said and "ill:" in said
        assert sum("notes begins" in line for line in said) == 2

    @pytest.mark.long
    async def test_a_slow_answer_is_an_answer(self, world: MakeWorld) -> None:
        mine = world(notes(more="--slow 2.5"), readiness=Readiness(timeout_sec=60))
        await mine.start()
        ready = await mine.readiness()
        assert ready.probes[0].answer == "HTTP 200" and (ready.probes[0].seconds or 0) >= 2.5

    async def test_a_service_that_ends_is_not_waited_for(self, world: MakeWorld) -> None:
        broken = Service(name="broken", command="notes --nonsense", port=9102)
        mine = world(notes(), broken, readiness=Readiness(timeout_sec=600))
        await mine.start()
        began = time.monotonic()
        with pytest.raises(ServiceDiedError, match="'broken' ended with exit status 2") as caught:
            await mine.readiness()
        assert time.monotonic() - began < 300
        assert "usage: notes" in (caught.value.log_tail or "")

    @pytest.mark.long
    async def test_a_service_that_ends_while_others_start_is_not_waited_for(
        self, place: Sandbox, world: MakeWorld
    ) -> None:
        command = f"sh -c 'sleep 1; echo out of luck; exit 9' --port {PORT}"
        await place.write_file("/usr/local/bin/sh", '#!/bin/sh\n[ "$1" = --help ] || exec /bin/sh "$@"\n', mode=0o755)
        mine = world(
            Service(name="unlucky", command=command, port=PORT),
            notes("late", 9102, "--late 600"),
            readiness=Readiness(timeout_sec=600),
        )
        await mine.start()
        began = time.monotonic()
        with pytest.raises(ServiceDiedError, match="'unlucky' ended with exit status 9") as caught:
            await mine.readiness()
        assert time.monotonic() - began < 300
        assert caught.value.log_tail == "out of luck\n"

    async def test_a_service_that_goes_into_the_background_is_waited_for(
        self, place: Sandbox, world: MakeWorld
    ) -> None:
        mine = world(notes(more="--daemon --late 0.3"))
        await mine.start()
        ready = await mine.readiness()
        assert ready.services[0].state == "running"
        # They count from its start, though what was started is not there any more.
        assert ready.seconds >= (ready.probes[0].seconds or 0)
        await mine.check()
        await mine.teardown()
        assert await running(place, "notes --db") == 0


# Services are the same wherever they run.


@pytest.mark.docker
@pytest.mark.long
class TestReadinessOnDocker(OnDocker, ReadinessOfAWorld):
    pass


@pytest.mark.local
class TestReadinessOnLocal(OnLocal, ReadinessOfAWorld):
    pass
