"""Processes: those that an agent left are killed, those of the environment stay."""

from __future__ import annotations

import asyncio

from benchflow.contracts.sandbox import Sandbox
from benchflow.contracts.sandbox_provider import SandboxProvider
from benchflow.testing.sandbox_conformance.sandbox_fixtures import SandboxFixtures, asleep, leave, nap, napping
from benchflow.testing.waiting import until

FORGE = """
import ctypes, os, time
if os.fork(): os._exit(0)
os.setsid()
ctypes.CDLL(None).prctl(15, b')\\n1 (init) S 0', 0, 0, 0)
open('/forged', 'w').close()
time.sleep(900)
"""

SERVE = """
import os, subprocess, sys, time
worker = subprocess.Popen(['sleep', sys.argv[1]])
asked = False
while True:
    if worker.poll() is not None:
        worker = subprocess.Popen(['sleep', sys.argv[1]])
    if not asked and os.path.exists('/asked'):
        asked = True
        subprocess.Popen(['sleep', open('/asked').read()])
        if not os.fork():
            time.sleep(900)
    time.sleep(0.02)
"""
"""Service that keeps a worker running, and forks and starts another program once /asked exists."""

RABBIT = """
import os, time
os.setsid()
while True:
    with open('/tmp/alive.part', 'w') as file: file.write(str(time.time()) + chr(10))
    os.replace('/tmp/alive.part', '/tmp/alive')
    time.sleep(0.002)
    if os.fork(): os._exit(0)
"""
"""Forks at short intervals, and exits in the parent, so that its process id is always new."""

HEADLESS = """
import ctypes, os, sys, threading, time
os.setsid()
def work():
    while True:
        with open('/tmp/alive.part', 'w') as file: file.write(str(time.time()) + chr(10))
        os.replace('/tmp/alive.part', '/tmp/alive')
        time.sleep(0.005)
threading.Thread(target=work).start()
ctypes.CDLL(None).syscall({'x86_64': 60}.get(os.uname().machine, 93), 0)
"""
"""Ends its first thread, so that the kernel reports a zombie, while another thread runs on."""

BOMB = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for _ in range(5): os.fork()
os.setsid() if os.getpid() % 2 else None
while True:
    if not os.fork():
        time.sleep(0.2)
        os._exit(0)
    time.sleep(0.05)
"""
"""Fork bomb of 32 processes, half of them in sessions of their own, that keep starting others."""


class ProcessTests(SandboxFixtures):
    """Tests of `mark_baseline` and `kill_processes`."""

    async def test_services_stay_and_everything_else_is_killed(self, still: Sandbox) -> None:
        service, mine, others = nap(), nap(), nap()
        await leave(still, service)
        await still.mark_baseline()
        await leave(still, mine)
        await leave(still, others, user="nobody")
        assert await still.kill_processes() == 2
        assert await napping(still, service, mine, others) == [service]
        assert await still.kill_processes() == 0

    async def test_what_a_service_forks_stays_and_another_program_that_it_starts_goes(self, still: Sandbox) -> None:
        worker, agents = nap(), nap()
        await still.write_file("/serve.py", SERVE)
        await still.exec(["sh", "-c", f"python3 /serve.py {worker} >/dev/null 2>&1 &"])
        await asleep(still, worker)
        await still.mark_baseline()
        # The agent has the service fork, start its own program again, and start another one.
        await still.exec(["pkill", "-xf", f"sleep {worker}"])
        await still.write_file("/asked", agents)

        async def forked() -> bool:
            return (await still.control("pgrep -cf '^python3 /serve.py'")).stdout == "2\n"

        await until(forked)
        await asleep(still, worker, agents)
        find = "pgrep -f '^python3 /serve.py'; pgrep -xf \"$1\"", f"sleep {worker}"
        before = (await still.control(*find)).stdout
        assert await still.strangers() != []
        assert await still.kill_processes() == 1
        assert await napping(still, worker, agents) == [worker]
        assert (await still.control(*find)).stdout == before
        assert await still.strangers() == []

    async def test_what_a_service_starts_again_and_again_is_left_alone_and_told(self, still: Sandbox) -> None:
        worker, later = nap(), nap()
        await still.exec(["sh", "-c", f"(sleep {worker}; while :; do sleep {later}; done) >/dev/null 2>&1 &"])
        await asleep(still, worker)
        await still.mark_baseline()
        await still.exec(["pkill", "-xf", f"sleep {worker}"])
        await asleep(still, later)
        assert await still.kill_processes() >= 1
        for _ in range(4):
            # Each time, the service starts another one.
            await asleep(still, later)
            await still.kill_processes()
        assert await still.kill_processes() == 0
        await asleep(still, later)
        assert ["".join(process.command.split()) for process in await still.strangers()] == [f"sleep{later}"]

    async def test_an_orphan_with_a_services_arguments_is_killed(self, still: Sandbox) -> None:
        service = nap()
        await leave(still, service)
        await still.mark_baseline()
        await leave(still, service)
        assert await still.kill_processes() == 1
        assert await napping(still, service) == [service]

    async def test_without_a_baseline_only_the_sandbox_itself_stays(self, own: Sandbox) -> None:
        length = nap()
        await leave(own, length)
        assert await own.kill_processes() == 1
        assert await napping(own, length) == []
        assert (await own.exec(["echo", "alive"])).stdout == "alive\n"

    async def test_keep_nothing_kills_services_too(self, still: Sandbox) -> None:
        length = nap()
        await leave(still, length)
        await still.mark_baseline()
        assert await still.kill_processes(keep="nothing") == 1
        assert await napping(still, length) == []
        assert (await still.exec(["echo", "alive"])).stdout == "alive\n"

    async def test_a_later_baseline_goes_instead_of_an_earlier_one(self, still: Sandbox) -> None:
        first, second = nap(), nap()
        await still.mark_baseline()
        await leave(still, first)
        await still.mark_baseline()
        await leave(still, second)
        assert await still.kill_processes() == 1
        assert await napping(still, first, second) == [first]

    async def test_what_runs_under_a_key_can_be_added_to_the_baseline(self, still: Sandbox) -> None:
        first, service, worker, agents = nap(), nap(), nap(), nap()
        await leave(still, first)
        await still.mark_baseline()
        await leave(still, agents)
        task = asyncio.create_task(still.exec_once("world", ["sh", "-c", f"setsid sleep {worker} & sleep {service}"]))
        await asleep(still, service, worker)
        await still.mark_baseline("world")
        await still.mark_baseline("never started")
        assert await still.kill_processes() == 1
        assert await napping(still, first, service, worker, agents) == [first, service, worker]
        await still.kill_once("world")
        await task

    async def test_of_a_restored_sandbox_only_what_was_added_belongs_to_the_world(self, still: Sandbox) -> None:
        # All else that runs was started by a program that an agent left.
        planted, service = nap(), nap()
        await leave(still, planted)
        task = asyncio.create_task(still.exec_once("restored", ["sleep", service]))
        await asleep(still, service)
        await still.mark_baseline("restored")
        await still.mark_baseline(is_restored=True)
        assert await still.kill_processes() == 1
        assert await napping(still, planted, service) == [service]
        await still.kill_once("restored")
        await task

    async def test_the_baseline_survives_the_process_that_marked_it(
        self, still: Sandbox, other: SandboxProvider
    ) -> None:
        service, mine = nap(), nap()
        await leave(still, service)
        await still.mark_baseline()
        await leave(still, mine)
        assert await (await other.attach(still.ref)).kill_processes() >= 1
        assert await napping(still, service, mine) == [service]

    async def test_the_baseline_cannot_be_changed_from_inside(self, still: Sandbox) -> None:
        await still.mark_baseline()
        said = await still.exec(["grep", "-rl", "baseline", "/run", "/logs", "/tmp"])
        assert said.stdout == ""

    async def test_a_process_with_a_forged_name_is_killed_all_the_same(self, still: Sandbox) -> None:
        await still.mark_baseline()
        await still.exec(["python3", "-c", FORGE])

        async def forged() -> bool:
            return (await still.exec(["test", "-e", "/forged"])).return_code == 0

        await until(forged)
        assert await still.kill_processes() == 1

    async def test_a_stopped_process_is_killed_too(self, still: Sandbox) -> None:
        length = nap()
        await leave(still, length)
        await still.exec(["pkill", "-STOP", "-f", f"sleep {length}$"])
        assert await still.kill_processes() == 1
        assert await napping(still, length) == []

    async def test_processes_that_multiply_are_all_killed_and_services_live(self, still: Sandbox) -> None:
        service, length = nap(), nap()
        await leave(still, service)
        await still.mark_baseline()
        await still.exec(["sh", "-c", f"f() {{ setsid sleep {length} & sleep 0.02; f & }}; f"])
        await asleep(still, length)
        assert await still.kill_processes() >= 2
        assert await napping(still, service, length) == [service]

    async def test_a_fork_bomb_is_put_out(self, still: Sandbox) -> None:
        await still.mark_baseline()
        await still.exec(["sh", "-c", 'python3 -c "$1" >/dev/null 2>&1 &', "sh", BOMB])

        async def burning() -> bool:
            return int((await still.exec(["sh", "-c", "pgrep -c python3"])).stdout) >= 32

        await until(burning)
        assert await still.kill_processes() >= 32
        # Found by their arguments, since a killed process that the kernel is still removing has none.
        assert (await still.exec(["sh", "-c", "ps -eo args= | grep -c ^python3"])).stdout == "0\n"

    async def test_what_goes_on_as_another_process_all_the_time_is_killed(self, still: Sandbox) -> None:
        service = nap()
        await leave(still, service)
        await still.mark_baseline()
        await still.exec(["sh", "-c", 'python3 -c "$1" >/dev/null 2>&1 &', "sh", RABBIT])

        async def running() -> bool:
            return (await still.exec(["test", "-s", "/tmp/alive"])).return_code == 0

        await until(running)
        assert await still.kill_processes() >= 1
        said = await still.control("for i in 1 2 3 4 5 6 7 8; do cat /tmp/alive; done | sort -u | wc -l")
        assert said.stdout.strip() == "1"
        assert await napping(still, service) == [service]

    async def test_what_goes_on_without_its_first_thread_is_seen_and_killed(self, still: Sandbox) -> None:
        service = nap()
        await leave(still, service)
        await still.mark_baseline()
        await still.exec(["sh", "-c", 'python3 -c "$1" >/dev/null 2>&1 &', "sh", HEADLESS])
        await _headless(still)
        assert len(await still.strangers()) == 1
        assert await still.kill_processes() == 1
        assert await still.strangers() == []
        assert not await _is_alive(still)
        assert await napping(still, service) == [service]

    async def test_what_goes_on_without_its_first_thread_ends_with_its_command(self, still: Sandbox) -> None:
        script = f'python3 -c "$1" >/dev/null 2>&1 & sleep {nap()}'
        task = asyncio.create_task(still.exec_once("headless", ["sh", "-c", script, "sh", HEADLESS]))
        await _headless(still)
        await still.kill_once("headless")
        await task
        assert not await _is_alive(still)

    async def test_a_command_under_way_is_the_agents_and_ends_with_its_status(self, still: Sandbox) -> None:
        length = nap()
        task = asyncio.create_task(still.exec(["sleep", length]))
        await asleep(still, length)
        assert await still.kill_processes() >= 1
        assert (await task).return_code == 137


async def _headless(sandbox: Sandbox) -> None:
    """Wait until `HEADLESS` runs without its first thread."""
    find = "test -s /tmp/alive && cat /proc/[0-9]*/stat | grep -q '(python3) Z'"

    async def goes_on() -> bool:
        return (await sandbox.control(find)).return_code == 0

    await until(goes_on)


async def _is_alive(sandbox: Sandbox) -> bool:
    """Return whether a process keeps writing to /tmp/alive, and remove the file."""
    said = await sandbox.control(
        "for i in 1 2 3 4 5 6; do cat /tmp/alive; sleep 0.02; done | sort -u; rm -f /tmp/alive"
    )
    return len(said.stdout.splitlines()) > 1
