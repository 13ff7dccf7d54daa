"""Services that the framework starts, in real sandboxes."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path

import pytest
from support.small_worlds import PORT, MakeServices, OnDocker, OnLocal, Worlds, ask, notes, running

from benchflow.contracts.environment import Service, ServiceStatus
from benchflow.contracts.sandbox import Sandbox
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.errors import ServiceDiedError, WorldError
from benchflow.planes.environment import services as product
from benchflow.planes.environment.service_epoch import WORLD
from benchflow.testing.waiting import until

MISSING = Service(name="absent", command="no-such-program --port 1", port=9199)


async def healthy(sandbox: Sandbox, port: int = PORT) -> None:
    async def answers() -> bool:
        try:
            return bool(await ask(sandbox, "/health", port))
        except AssertionError:
            return False

    await until(answers)


@pytest.mark.long
async def test_a_probe_that_begins_late_and_hangs_is_ended_too(tmp_path: Path) -> None:
    programs, boot = tmp_path / "bin", tmp_path / "world" / "1"
    programs.mkdir()
    late = '#!/bin/sh\ncase $2 in *.probing) sleep 2 ;; esac\nexec /bin/mv "$@"\n'
    for name, text in (("hangs", "#!/bin/sh\nexec sleep 600\n"), ("mv", late)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    script = Path(product.__file__).with_name("supervisor.sh").read_text()
    words = ["world", str(boot), "1", "/", "1", "1000000", "hangs", "ask", "hangs", "hangs"]
    supervisor = await asyncio.create_subprocess_exec(
        *("/bin/sh", "-c", script, *words),
        env={"PATH": f"{programs}:{os.environ['PATH']}"},
        start_new_session=True,
    )
    try:
        await until(lambda: asyncio.to_thread((boot / "1" / "hangs.left_out").exists))
    finally:
        os.killpg(supervisor.pid, signal.SIGKILL)
        await supervisor.wait()
    assert (boot / "1" / "hangs.left_out").read_text() == f"{128 + signal.SIGKILL}\n"
    assert not (boot / "1" / "hangs.probing").exists()


class ServicesOfAWorld(Worlds):
    async def test_what_the_image_has_is_started_and_the_rest_is_left_out(
        self, place: Sandbox, services: MakeServices
    ) -> None:
        refuses = Service(name="refuses", command="false", port=9198)
        found = await services(notes(), MISSING, notes("more", 9102), refuses).start()
        assert found == (
            ServiceStatus(name="notes", port=PORT, state="running"),
            ServiceStatus(name="absent", port=9199, state="left_out"),
            ServiceStatus(name="more", port=9102, state="running"),
            ServiceStatus(name="refuses", port=9198, state="left_out"),
        )
        await healthy(place)
        await healthy(place, 9102)

    async def test_a_service_is_run_as_a_shell_would_run_its_command(
        self, place: Sandbox, services: MakeServices
    ) -> None:
        command = f"""'no'tes --db "/data/a b's.db" --port {PORT} && true"""
        await services(Service(name="quoted", command=command, port=PORT)).start()
        await healthy(place)
        assert (await place.read_bytes("/data/a b's.db")).startswith(b"SQLite format 3")

    async def test_services_have_their_variables_which_are_written_nowhere(
        self, place: Sandbox, services: MakeServices
    ) -> None:
        await services(notes(), env={"KEY": "value-of-the-key"}).start()
        await healthy(place)
        assert (await ask(place, "/env"))["KEY"] == "value-of-the-key"
        assert await ask(place, "/cwd") == place.ref.workdir
        assert await running(place, "value-of-the-key") == 0
        found = await place.control("grep -rl value-of-the-key /run/benchflow /data /tmp /var/tmp")
        assert found.stdout == ""
        assert (await place.control(f"stat -c %a:%u {WORLD}")).stdout == "700:0\n"

    async def test_starting_again_starts_nothing_here_or_elsewhere(
        self, place: Sandbox, services: MakeServices, other: SandboxProvider
    ) -> None:
        first = await services(notes()).start()
        elsewhere = services(notes(), sandbox=await other.attach(place.ref))
        assert await services(notes()).start() == await elsewhere.start() == first
        await healthy(place)
        assert (await services(notes()).logs())["notes"].count("notes begins") == 1
        await elsewhere.stop()
        assert await running(place, "notes --db") == 0

    @pytest.mark.long
    async def test_services_are_probed_side_by_side(self, place: Sandbox, services: MakeServices) -> None:
        """Each says that it is there only when all have been asked."""
        together = (
            '#!/bin/sh\n[ "$1" = --help ] || exec notes "$@"\n: >/data/asked-${0##*/}\n'
            "until [ -e /data/asked-one ] && [ -e /data/asked-two ]; do sleep 0.05; done\n"
        )
        declared = []
        for port, name in enumerate(("one", "two"), 9110):
            await place.write_file(f"/usr/local/bin/{name}", together, mode=0o755)
            declared.append(Service(name=name, command=f"{name} --db /data/{name}.db --port {port}", port=port))
        assert [status.state for status in await services(*declared).start()] == ["running"] * 2

    async def test_a_probe_that_is_known_is_not_made_again(self, place: Sandbox, services: MakeServices) -> None:
        count = '#!/bin/sh\necho "$*" >>/data/calls\nexec notes "$@"\n'
        await place.write_file("/usr/local/bin/counted", count, mode=0o755)
        declared = [
            Service(name="a", command=f"counted --db /data/a.db --port {PORT}", port=PORT),
            Service(name="b", command="counted --db /data/b.db --port 9102", port=9102),
        ]
        found = await services(*declared, probed={"a": True, "b": False}).start()
        assert [status.state for status in found] == ["running", "left_out"]
        await healthy(place)
        assert await place.read_bytes("/data/calls") == f"--db /data/a.db --port {PORT}\n".encode()

    async def test_a_probe_that_hangs_means_that_the_image_has_no_such_service(
        self, place: Sandbox, services: MakeServices
    ) -> None:
        await place.write_file("/usr/local/bin/hangs", "#!/bin/sh\nexec sleep 600\n", mode=0o755)
        hangs = Service(name="hangs", command="hangs", port=9197)
        found = await services(notes(), hangs, probed={"notes": True}, probe_sec=1).start()
        assert [status.state for status in found] == ["running", "left_out"]

    async def test_an_image_without_any_service_is_refused_with_the_probes_words(
        self, place: Sandbox, services: MakeServices
    ) -> None:
        refuses = Service(name="refuses", command="sh -c 'exit 3' --port 5", port=9198)
        await place.write_file("/usr/local/bin/sh", "#!/bin/sh\necho no help here; exit 3\n", mode=0o755)
        for _ in range(2):
            with pytest.raises(WorldError, match="none of the services") as caught:
                await services(MISSING, refuses).start()
            assert caught.value.file == "world.toml"
            said = caught.value.log_tail or ""
            assert "absent: `no-such-program --help`: exit status 127" in said and "not found" in said
            assert "refuses: `sh --help`: exit status 3: no help here" in said

    async def test_a_port_that_somebody_has_is_refused_by_name_and_can_be_tried_again(
        self, place: Sandbox, services: MakeServices
    ) -> None:
        squatter = asyncio.create_task(place.exec(["python3", "-m", "http.server", str(PORT)], cwd="/tmp"))
        await healthy_port(place, PORT)
        with pytest.raises(WorldError, match=f"{PORT}.*'notes'"):
            await services(notes(), notes("more", 9102)).start()
        assert await running(place, "notes --db") == 0
        squatter.cancel()
        await asyncio.gather(squatter, return_exceptions=True)
        await until(lambda: _none(place, "http.server"))
        found = await services(notes(), notes("more", 9102)).start()
        assert [status.state for status in found] == ["running", "running"]

    @pytest.mark.long
    async def test_a_port_of_what_this_image_does_not_have_may_be_anybodys(
        self, place: Sandbox, services: MakeServices
    ) -> None:
        squatter = asyncio.create_task(place.exec(["python3", "-m", "http.server", "9199"], cwd="/tmp"))
        await healthy_port(place, 9199)
        found = await services(notes(), MISSING).start()
        assert [status.state for status in found] == ["running", "left_out"]
        squatter.cancel()
        await asyncio.gather(squatter, return_exceptions=True)

    async def test_a_service_that_ends_is_told_with_its_status_and_its_last_words(
        self, place: Sandbox, services: MakeServices
    ) -> None:
        mine = services(notes(), notes("more", 9102))
        await mine.start()
        await healthy(place)
        await mine.require_running()
        with pytest.raises(AssertionError):
            await ask(place, note="die 3")

        async def has_ended() -> bool:
            return (await mine.statuses())[0].state == "ended"

        # Who asked it to die hears of that before its supervisor does.
        await until(has_ended)
        with pytest.raises(ServiceDiedError, match=r"'notes' ended with exit status 3 after \d") as caught:
            await mine.require_running()
        assert "told to die" in (caught.value.log_tail or "")
        assert (await mine.statuses())[0] == ServiceStatus(name="notes", port=PORT, state="ended", exit_code=3)
        # What has ended is not started behind its back.
        assert (await mine.start())[0].state == "ended"

    @pytest.mark.long
    async def test_a_killed_service_is_told(self, place: Sandbox, services: MakeServices) -> None:
        mine = services(notes())
        await mine.start()
        await healthy(place)
        await place.control(
            "p=$(cut -d' ' -f1 /run/benchflow/world/*/1/notes.pid) && kill -9 $p\n"
            'while grep -qs "^State:.[^ZX]" /proc/$p/status; do sleep 0.05; done'
        )
        with pytest.raises(ServiceDiedError, match="'notes' ended with exit status 137"):
            await mine.require_running()

    async def test_services_outlive_their_supervisor(self, place: Sandbox, services: MakeServices) -> None:
        mine = services(notes())
        await mine.start()
        await healthy(place)
        await place.control("kill -9 $(cut -d' ' -f1 /run/benchflow/world/*/1/supervisor)")
        await mine.require_running()
        assert (await mine.start())[0].state == "running"
        await mine.stop()
        assert await running(place, "notes --db") == 0
        assert (await mine.start())[0].state == "running"

    @pytest.mark.long
    async def test_a_service_in_the_background_lives_as_long_as_its_port_is_served(
        self, place: Sandbox, services: MakeServices
    ) -> None:
        mine = services(notes(more="--daemon --late 0.5"))
        await mine.start()
        await mine.require_running(starting=True)
        await healthy(place)
        await mine.require_running()
        assert (await mine.statuses())[0] == ServiceStatus(name="notes", port=PORT, state="running")
        await mine.stop()
        assert await running(place, "notes --db") == 0

    async def test_a_service_that_just_ends_with_success_is_dead(self, services: MakeServices) -> None:
        mine = services(Service(name="brief", command="true", port=9196), late_sec=0.2)
        await mine.start()

        async def told() -> bool:
            try:
                await mine.require_running(starting=True)
            except ServiceDiedError:
                return True
            return False

        await until(told)

    async def test_stopping_ends_all_that_services_started_and_gives_them_a_moment(
        self, place: Sandbox, services: MakeServices
    ) -> None:
        polite = (
            "#!/usr/bin/env python3\n"
            "import signal, subprocess, sys, time\n"
            "if '--help' in sys.argv: sys.exit()\n"
            "def bye(*_):\n  time.sleep(0.3); open('/data/bye', 'w').write('bye'); sys.exit()\n"
            "signal.signal(signal.SIGTERM, bye)\n"
            "subprocess.Popen(['setsid', 'sleep', '98765'])\n"
            "subprocess.Popen(['env', '-i', 'sh', '-c', 'sleep 98766 & sleep 98767'])\n"
            "open('/data/up', 'w')\n"
            "time.sleep(600)\n"
        )
        await place.write_file("/usr/local/bin/polite", polite, mode=0o755)
        mine = services(Service(name="polite", command="polite", port=9195), notes(), grace_sec=600.0)
        await mine.start()
        await healthy(place)
        await until(lambda: _exists(place, "/data/up"))
        began = time.monotonic()
        await mine.stop()
        assert time.monotonic() - began < 300
        assert await place.read_bytes("/data/bye") == b"bye"
        for words in ("sleep 9876", "polite", "notes --db", "benchflow-world"):
            assert await running(place, words) == 0
        await mine.stop()

    async def test_stopping_kills_what_does_not_obey(self, place: Sandbox, services: MakeServices) -> None:
        rude = "#!/bin/sh\n[ \"$1\" = --help ] && exit 0\ntrap '' TERM\n: >/data/up\nwhile :; do sleep 0.1; done\n"
        await place.write_file("/usr/local/bin/rude", rude, mode=0o755)
        mine = services(Service(name="rude", command="rude", port=9195), grace_sec=0.5)
        await mine.start()
        await until(lambda: _exists(place, "/data/up"))
        began = time.monotonic()
        await mine.stop()
        assert time.monotonic() - began >= 0.5
        assert await running(place, "local/bin/rude") == 0

    async def test_services_can_be_started_and_stopped_again_and_keep_one_log(
        self, place: Sandbox, services: MakeServices
    ) -> None:
        mine = services(notes(), MISSING)
        for _ in range(2):
            assert [status.state for status in await mine.start()] == ["running", "left_out"]
            await healthy(place)
            await mine.stop()
        assert (await mine.logs())["notes"].count("notes begins") == 2
        assert len((await mine.logs(tail=20))["notes"]) <= 20
        assert len((await place.control(f"ls -d {WORLD}/*/[0-9]*")).stdout.split()) == 1

    async def test_a_log_without_end_keeps_its_head_and_its_tail(self, place: Sandbox, services: MakeServices) -> None:
        chatty = (
            '#!/bin/sh\n[ "$1" = --help ] && exit 0\necho the first line\n'
            'i=0; while :; do i=$((i+1)); echo "line $i .........................................."; done\n'
        )
        await place.write_file("/usr/local/bin/chatty", chatty, mode=0o755)
        mine = services(Service(name="chatty", command="chatty", port=9195), log_cap=20_000)
        await mine.start()
        await until(lambda: _exists(place, f"$(ls -d {WORLD}/*/logs)/chatty.log.head"))
        await mine.stop()
        log = (await mine.logs())["chatty"]
        assert log.startswith("the first line\nline 1 ") and "left out here" in log
        assert log.endswith(".\n")

    async def test_services_belong_to_the_world_that_verifiers_find(
        self, place: Sandbox, services: MakeServices
    ) -> None:
        await place.mark_baseline()
        mine = services(notes())
        await mine.start()
        await mine.stop()
        await mine.start()
        await healthy(place)
        await place.exec(["sh", "-c", "(setsid sleep 98768 &) >/dev/null 2>&1"])
        await place.kill_processes()
        assert await running(place, "sleep 98768") == 0
        await mine.require_running()
        assert await ask(place) == []


async def healthy_port(sandbox: Sandbox, port: int) -> None:
    async def answers() -> bool:
        said = await sandbox.exec(
            ["python3", "-I", "-S", "-c", f"import socket; socket.create_connection(('localhost', {port}))"]
        )
        return said.return_code == 0

    await until(answers)


async def _none(sandbox: Sandbox, words: str) -> bool:
    return await running(sandbox, words) == 0


async def _exists(sandbox: Sandbox, path: str) -> bool:
    return (await sandbox.control(f"test -e {path}")).return_code == 0


# What Docker does to services, the tests of whole worlds show in every run, too.


@pytest.mark.docker
@pytest.mark.long
class TestServicesOnDocker(OnDocker, ServicesOfAWorld):
    pass


@pytest.mark.local
class TestServicesOnLocal(OnLocal, ServicesOfAWorld):
    async def test_a_restored_sandbox_begins_a_world_of_its_own(
        self, place: Sandbox, services: MakeServices, keep: object
    ) -> None:
        mine = services(notes())
        await mine.start()
        await healthy(place)
        await place.restore(await keep(place))  # type: ignore[operator]
        assert await running(place, "notes --db") == 0
        assert (await mine.start())[0].state == "running"
        await healthy(place)

    @pytest.mark.long
    async def test_a_forked_sandbox_begins_a_world_of_its_own(
        self, place: Sandbox, services: MakeServices, provider: SandboxProvider
    ) -> None:
        mine = services(notes())
        await mine.start()
        await healthy(place)
        [ref] = await place.fork([f"{place.ref.name}-child"])
        child = await provider.attach(ref)
        theirs = services(notes(), sandbox=child)
        assert (await theirs.start())[0].state == "running"
        await healthy(child)
        await theirs.stop()
        assert await ask(place) == []
