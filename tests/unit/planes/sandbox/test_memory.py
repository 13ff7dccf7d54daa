"""Memory counters: what control groups of either version say, and what is made of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.idle_sandbox import IdleSandbox

from benchflow.contracts.memory_use import MemoryUse
from benchflow.contracts.sandbox import SandboxRef
from benchflow.planes.sandbox.docker.container_memory import find_last_use, make_lost_error
from benchflow.planes.sandbox.sandbox_memory import KillNote, parse_memory

EVENTS = "low 0\nhigh 0\nmax 41\noom 3\noom_kill 2\noom_group_kill 1\n"
OOM_CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n"
PEAK = str((96 << 20) - 4096)

V2 = {"memory.events": EVENTS, "memory.max": f"{96 << 20}\n", "memory.peak": f"{PEAK}\n"}
V1 = {
    "memory.oom_control": OOM_CONTROL,
    "memory.limit_in_bytes": f"{96 << 20}\n",
    "memory.max_usage_in_bytes": f"{PEAK}\n",
}


@pytest.mark.parametrize("files", [V2, V1, V2 | dict.fromkeys(V1, "")], ids=["v2", "v1", "v2-without-v1"])
def test_kills_limit_and_peak_are_read_from_either_version(files: dict[str, str]) -> None:
    assert parse_memory(files) == MemoryUse(kills=2, limit_mb=96, peak_mb=95)


def test_what_a_kernel_does_not_count_is_unknown() -> None:
    assert parse_memory({"memory.events": EVENTS, "memory.max": "max\n"}) == MemoryUse(kills=2)
    assert parse_memory(V1 | {"memory.limit_in_bytes": "9223372036854771712\n"}) == MemoryUse(kills=2, peak_mb=95)
    assert parse_memory({}) is None
    # Before Linux 4.13.
    assert parse_memory(V1 | {"memory.oom_control": "oom_kill_disable 0\nunder_oom 0\n"}) is None


AT_ITS_LIMIT = "the kernel killed 1 process of the sandbox at its memory limit (limit 96 MiB"
OF_ITS_HOST = "the kernel killed 1 process of the sandbox because this host was out of memory (the sandbox's limit: "


@pytest.mark.parametrize(
    ("use", "says", "remedy"),
    [
        (MemoryUse(kills=1, limit_mb=96, peak_mb=96), f"{AT_ITS_LIMIT}, peak 96 MiB)", "raise k"),
        (MemoryUse(kills=1, limit_mb=96), f"{AT_ITS_LIMIT})", "raise k"),
        (MemoryUse(kills=1, limit_mb=96, peak_mb=40), f"{OF_ITS_HOST}96 MiB, peak 40 MiB)", "fewer rollouts"),
        (MemoryUse(kills=1), f"{OF_ITS_HOST}none)", "fewer rollouts"),
    ],
    ids=["limit", "unknown-peak", "host", "unlimited"],
)
def test_the_limit_that_was_reached_is_named_and_how_to_raise_it(use: MemoryUse, says: str, remedy: str) -> None:
    assert use.explanation(1) == says
    assert remedy in use.remedy("k")


def test_a_sandbox_that_was_started_again_counts_from_zero() -> None:
    assert MemoryUse(kills=5).kills_since(3) == 2
    assert MemoryUse(kills=2).kills_since(3) == 2


class Killing(IdleSandbox):
    def __init__(self) -> None:
        super().__init__(SandboxRef(provider="noop", name="s", handle="h", host_id="", queue="", workdir="/"))
        self.use: MemoryUse | None = MemoryUse(kills=3)

    async def memory_use(self) -> MemoryUse | None:
        return self.use


async def test_kills_are_counted_from_the_note_on_in_any_process(tmp_path: Path) -> None:
    sandbox, file = Killing(), tmp_path / "notes" / "memory.json"
    assert KillNote(file).count_kills(MemoryUse(kills=4)) == 4
    await KillNote(file).start(sandbox)
    assert KillNote(file).has_started
    assert KillNote(file).count_kills(MemoryUse(kills=4)) == 1
    sandbox.use = None
    await KillNote(file).start(sandbox)
    assert KillNote(file).count_kills(MemoryUse(kills=4)) == 1


def container(*, killed: bool, code: int, running: bool = False) -> dict[str, object]:
    return {
        "State": {"Running": running, "OOMKilled": killed, "ExitCode": code},
        "HostConfig": {"Memory": 64 << 20},
    }


def test_a_container_that_ended_for_want_of_memory_is_told_from_others() -> None:
    assert find_last_use(container(killed=True, code=137)) == MemoryUse(kills=1, limit_mb=64)
    # The daemon's flag is up as well if any other process was killed before.
    assert find_last_use(container(killed=True, code=1)) == MemoryUse(kills=0, limit_mb=64)
    assert find_last_use(container(killed=False, code=0, running=True)) is None
    error = make_lost_error("s", container(killed=True, code=137))
    assert (error.category, error.key, error.retryable) == ("sandbox_memory", "memory_mb", False)
    assert "limit 64 MiB" in error.message and "raise memory_mb" in str(error.remedy)
    assert make_lost_error("s", container(killed=False, code=137)).category == "sandbox_lost"
    assert make_lost_error("s", None).category == "sandbox_lost"
