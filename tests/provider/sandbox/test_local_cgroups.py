"""Control groups of sandboxes, with real processes in real groups."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.embedded import chance_of_this_run
from support.local_sandboxes import NOT_ROOT
from support.paths import ROOT

from benchflow.errors import SandboxError
from benchflow.planes.sandbox.local.cgroup_limits import make_settings_v1, make_settings_v2
from benchflow.planes.sandbox.local.cgroups import (
    Cgroup,
    Cgroups,
    Hierarchies,
    SandboxLimits,
    find_hierarchies,
    kill_frozen,
)
from benchflow.planes.sandbox.local.store.mount_table import parse, read_mounts
from benchflow.testing.waiting import until

pytestmark = pytest.mark.local

Run = Callable[..., "subprocess.Popen[str]"]

JOIN = 'n=$1; shift; while [ "$n" -gt 0 ]; do echo 0 >"$1" || exit 99; shift; n=$((n - 1)); done; exec "$@"'
CHURN = "import os\nwhile True:\n    if os.fork(): os._exit(0)"
COUNT = "import sys\nn = 0\nwhile True:\n    n += 1\n    sys.stdout.seek(0); print(n, flush=True)"


@pytest.fixture
def group() -> str:
    return f"test-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def groups(tmp_path: Path, group: str) -> Iterator[Cgroups]:
    before = [mount.point for mount in read_mounts() if mount.kind.startswith("cgroup")]
    made = Cgroups(tmp_path, group)
    yield made
    for name in made.names():
        made.sandbox(name).remove()
    made.sweep()
    assert not [path for path in made.directories() if path.exists()]
    assert [mount.point for mount in read_mounts() if mount.kind.startswith("cgroup")] == before


@pytest.fixture
def one(groups: Cgroups) -> Cgroup:
    made = groups.sandbox("one")
    assert made.make(SandboxLimits()) == ()
    return made


@pytest.fixture
def run() -> Iterator[Run]:
    """Runs a command in a leaf; it is ended with the test."""
    started = []

    def begin(cgroup: Cgroup, *command: str, leaf: str = "main", **options: object) -> subprocess.Popen[str]:
        files = cgroup.join_files(leaf)
        process = subprocess.Popen(
            ["sh", "-c", JOIN, "sh", str(len(files)), *files, *command],
            text=True,
            **options,  # type: ignore[call-overload]
        )
        started.append(process)
        asyncio.run(until(lambda: process.poll() is not None or cgroup.pids(leaf)))
        return process

    yield begin
    for process in started:
        process.kill()
        process.wait()


def python(code: str) -> tuple[str, ...]:
    return sys.executable, "-I", "-S", "-c", code


def elsewhere(script: str, *code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python after a shell script, in a mount namespace of their own."""
    return subprocess.run(
        ["unshare", "-m", "sh", "-ec", script + '\nexec "$@"', "sh", sys.executable, "-c", "\n".join(code)],
        capture_output=True,
        text=True,
        env=os.environ | variables | {"PYTHONPATH": str(ROOT)},
        timeout=600,
    )


def test_what_joined_is_found_by_sandbox_and_by_leaf(one: Cgroup, run: Run) -> None:
    first, second = run(one, "sleep", "300", leaf="a"), run(one, "sleep", "300", leaf="b")
    assert one.pids() == {first.pid, second.pid}
    assert one.pids("a") == {first.pid}
    assert one.leaves() == ["a", "b"]


def test_what_a_process_starts_stays_with_it(one: Cgroup, run: Run) -> None:
    run(one, "sh", "-c", "(setsid sleep 300 &) ; sleep 300 & wait")
    asyncio.run(until(lambda: len(one.pids("main")) == 3))
    one.kill()
    one.wait_empty()
    assert one.pids() == set()


def test_another_process_finds_the_same_group(tmp_path: Path, groups: Cgroups, one: Cgroup, run: Run) -> None:
    process = run(one, "sleep", "300")
    assert Cgroups(tmp_path, groups.group).names() == ["one"]
    assert Cgroups(tmp_path, groups.group).sandbox("one").pids() == {process.pid}
    assert Cgroups(tmp_path, f"{groups.group}-other").names() == []


def test_a_process_limit_is_enforced(groups: Cgroups, run: Run) -> None:
    one = groups.sandbox("one")
    assert one.make(SandboxLimits(pids=3)) == ()
    code = "import subprocess\nfor _ in range(5): subprocess.Popen(['sleep', '300'], stderr=-3)"
    process = run(one, *python(code), stderr=subprocess.PIPE)
    assert "Resource temporarily unavailable" in process.communicate()[1]


def test_a_memory_limit_kills_the_hog_and_nothing_else(groups: Cgroups, run: Run) -> None:
    one = groups.sandbox("one")
    assert one.make(SandboxLimits(memory_mb=64)) == ()
    init = run(one, "sleep", "300", leaf="init")
    hog = run(one, *python("x = bytearray(256 << 20)"), leaf="hog")
    assert hog.wait(60) == -signal.SIGKILL
    assert one.pids() == {init.pid}


def test_a_cpu_limit_is_enforced(groups: Cgroups, run: Run) -> None:
    one = groups.sandbox("one")
    assert one.make(SandboxLimits(cpus=0.25)) == ()
    code = "import time\nend = time.monotonic() + 0.5\nwhile time.monotonic() < end: pass\nprint(time.process_time())"
    process = run(one, *python(code), stdout=subprocess.PIPE)
    assert float(process.communicate()[0]) < 0.3


def test_limits_are_set_anew_up_and_down(groups: Cgroups) -> None:
    one = groups.sandbox("one")
    for size in (64, 64, 512, 32):
        assert one.make(SandboxLimits(memory_mb=size)) == ()


def test_limits_as_each_version_wants_them() -> None:
    limits = SandboxLimits(memory_mb=100, cpus=1.5, pids=7)
    assert make_settings_v2(limits) == {
        "memory": [("memory.max", "104857600"), ("memory.swap.max", "0")],
        "cpu": [("cpu.weight", "100"), ("cpu.max", "150000 100000")],
        "pids": [("pids.max", "7")],
    }
    assert make_settings_v1(limits)["cpu"][1:] == [("cpu.cfs_period_us", "100000"), ("cpu.cfs_quota_us", "150000")]


def test_without_limits_a_sandbox_still_has_its_own_share_of_the_processors() -> None:
    assert make_settings_v2(SandboxLimits(pids=None)) == {"cpu": [("cpu.weight", "100")]}
    assert make_settings_v1(SandboxLimits(pids=None)) == {"cpu": [("cpu.shares", "1024")]}


def test_a_version_2_controller_reaches_the_sandboxes_where_it_is_there(groups: Cgroups) -> None:
    one = groups.sandbox("one")
    one.make(SandboxLimits())
    there = (groups.v2.parents[1] / "cgroup.controllers").read_text().split()
    if not there:
        pytest.skip("all controllers are in older hierarchies here")
    above = [path / "cgroup.subtree_control" for path in (groups.v2, *groups.v2.parents[:2])]
    new = [file for file in above if there[0] not in file.read_text().split()]
    try:
        assert groups.enable(there[0])
        assert there[0] in (groups.v2 / "one" / "cgroup.controllers").read_text().split()
        assert not groups.enable("of-no-kernel")
    finally:
        for file in new:
            file.write_text(f"-{there[0]}")


UNIFIED = "36 25 0:30 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"
READ_ONLY = UNIFIED.replace(" rw,nosuid", " ro,nosuid")
HYBRID = """\
36 25 0:30 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
37 25 0:31 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct
38 25 0:32 / /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory
39 25 0:33 / /a\\040b/pids rw - cgroup cgroup rw,pids
40 25 0:30 / /home/cgroup rw - cgroup2 cgroup2 rw"""


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        (UNIFIED, Hierarchies(Path("/sys/fs/cgroup"), {})),
        (READ_ONLY, Hierarchies(None, {})),
        (
            HYBRID,
            Hierarchies(
                Path("/sys/fs/cgroup/unified"), {"cpu": Path("/sys/fs/cgroup/cpu,cpuacct"), "pids": Path("/a b/pids")}
            ),
        ),
        (HYBRID.splitlines()[-1], Hierarchies(Path("/home/cgroup"), {})),
    ],
)
def test_hierarchies_are_those_that_can_be_written_to(table: str, expected: Hierarchies) -> None:
    assert find_hierarchies(parse(table), Path("/home/cgroup")) == expected


def test_a_frozen_group_stands_still_and_goes_on(one: Cgroup, run: Run, tmp_path: Path) -> None:
    shown = tmp_path / "count"
    with shown.open("w") as out:
        run(one, *python(COUNT), stdout=out)
    asyncio.run(until(lambda: shown.read_text()))
    one.freeze(60)
    assert one.frozen
    still = shown.read_text()
    time.sleep(0.1)
    assert shown.read_text() == still
    one.thaw()
    assert not one.frozen
    asyncio.run(until(lambda: shown.read_text() != still))


def test_freezing_catches_processes_that_multiply(one: Cgroup, run: Run) -> None:
    run(one, *python(CHURN))
    for _ in range(20):
        one.freeze(60)
        before = one.pids()
        assert before == one.pids() != set()
        one.thaw()


def test_an_empty_group_can_be_frozen_and_a_missing_one_cannot(one: Cgroup, groups: Cgroups) -> None:
    one.freeze()
    one.thaw()
    with pytest.raises(SandboxError, match="cannot be frozen"):
        groups.sandbox("two").freeze()
    assert not groups.sandbox("two").frozen
    groups.sandbox("two").thaw()


def test_kill_ends_frozen_processes_too(one: Cgroup, run: Run) -> None:
    process = run(one, "sleep", "300")
    one.freeze(60)
    one.kill()
    one.wait_empty()
    assert process.wait(60) == -signal.SIGKILL


def test_killing_a_leaf_leaves_the_others(one: Cgroup, run: Run) -> None:
    service, command = run(one, "sleep", "300", leaf="service"), run(one, *python(CHURN), leaf="command")
    one.kill("command")
    one.wait_empty(leaf="command")
    assert one.pids() == {service.pid}
    command.wait(60)
    one.drop_leaf("command")
    one.drop_leaf("service")
    one.drop_leaf("never-there")
    assert one.leaves() == ["service"]


def test_without_the_kernels_own_kill_processes_that_multiply_end_too(one: Cgroup, run: Run, groups: Cgroups) -> None:
    run(one, *python(CHURN))
    run(one, "sleep", "300", leaf="other")
    kill_frozen(groups.v2 / "one")
    one.wait_empty()
    assert not one.frozen


def test_waiting_ends_when_the_last_process_does(one: Cgroup, run: Run) -> None:
    process = run(one, "sleep", "0.2")
    one.wait_empty()
    assert one.pids() == set()
    process.wait(60)


def test_waiting_gives_up_and_names_who_is_left(one: Cgroup, run: Run, groups: Cgroups) -> None:
    process = run(one, "sleep", "300")
    with pytest.raises(SandboxError, match=rf"pids: {process.pid}\)"):
        one.wait_empty(0.05)
    groups.sandbox("missing").wait_empty(0)


def test_remove_ends_what_runs_and_can_be_repeated(one: Cgroup, run: Run, groups: Cgroups) -> None:
    processes = [run(one, "sleep", "300", leaf=leaf) for leaf in ("a", "b")]
    run(one, *python(CHURN), leaf="c")
    one.freeze(60)
    one.remove()
    assert [process.wait(60) for process in processes] == [-signal.SIGKILL] * 2
    assert groups.names() == []
    one.remove()


def test_remove_finds_what_is_left_in_older_hierarchies_only(one: Cgroup, run: Run, groups: Cgroups) -> None:
    older = groups.v1("pids")
    if older is None:
        pytest.skip("no older hierarchies here")
    stray = subprocess.Popen(["sh", "-c", 'echo 0 >"$1"; exec sleep 300', "sh", str(older / "one" / "tasks")])
    asyncio.run(until(lambda: str(stray.pid) in (older / "one" / "cgroup.procs").read_text()))
    (groups.v2 / "one").rmdir()
    assert groups.names() == ["one"]
    groups.sandbox("one").remove()
    assert stray.wait(60) == -signal.SIGKILL
    assert groups.names() == []


def test_the_shared_directories_go_with_the_last_sandbox(one: Cgroup, groups: Cgroups) -> None:
    groups.sweep()
    assert groups.names() == ["one"]
    one.remove()
    groups.sweep()
    assert not [path for path in groups.directories() if path.exists()]


def test_a_name_cannot_leave_the_group(groups: Cgroups, one: Cgroup) -> None:
    for name in ("", "..", "a/b", ".x"):
        with pytest.raises(SandboxError):
            groups.sandbox(name)
        with pytest.raises(SandboxError):
            one.join_files(name)


MAKE_AND_SWEEP = """
import sys
from pathlib import Path
from benchflow.planes.sandbox.local.cgroups import Cgroups, SandboxLimits
groups = Cgroups(Path(sys.argv[1]), sys.argv[2])
for number in range(int(sys.argv[4])):
    one = groups.sandbox(f"{sys.argv[3]}-{number % 3}")
    assert one.make(SandboxLimits(memory_mb=64, cpus=1)) == ()
    one.join_files("leaf")
    one.freeze()
    one.thaw()
    one.remove()
    groups.sweep()
"""


def busy(tmp_path: Path, group: str, name: str, rounds: int) -> subprocess.Popen[str]:
    root = str(ROOT)
    command = [sys.executable, "-c", MAKE_AND_SWEEP, str(tmp_path), group, name, str(rounds)]
    return subprocess.Popen(command, env=os.environ | {"PYTHONPATH": root}, stderr=subprocess.PIPE, text=True)


def test_processes_make_and_sweep_at_once(tmp_path: Path, groups: Cgroups, group: str) -> None:
    processes = [busy(tmp_path, group, name, 40) for name in "abc"]
    for process in processes:
        assert process.communicate()[1] == ""
        assert process.returncode == 0
    assert groups.names() == []


@pytest.mark.parametrize("kills", [3, pytest.param(30, marks=pytest.mark.long)])
def test_whatever_a_killed_process_left_can_be_removed(tmp_path: Path, groups: Cgroups, group: str, kills: int) -> None:
    chance = chance_of_this_run()
    for _ in range(kills):
        process = busy(tmp_path, group, "a", 1_000_000)
        asyncio.run(until(lambda: groups.names()))
        # Anywhere in its work.
        asyncio.run(asyncio.sleep(chance.uniform(0, 0.05)))
        process.kill()
        process.communicate()
        for name in groups.names():
            groups.sandbox(name).remove()
        assert groups.names() == []


OWN_MOUNT = """
import os
from pathlib import Path
from benchflow.planes.sandbox.local.cgroups import Cgroups, SandboxLimits
from benchflow.planes.sandbox.local.store.mount_table import read_mounts
groups = Cgroups(Path(os.environ["HERE"]), os.environ["GROUP"])
one = groups.sandbox("one")
one.remove()
assert groups.names() == [] and not os.path.ismount(os.environ["HERE"] + "/cgroup")
print(one.make(SandboxLimits(memory_mb=64, cpus=1)))
print(one.join_files("leaf"))
one.freeze()
one.remove()
groups.sweep()
assert not [mount for mount in read_mounts() if mount.kind == "cgroup2"]
"""
UNMOUNT = "awk '$3 == \"{}\" {{ print $2 }}' /proc/mounts | xargs -r umount"


def test_version_2_is_mounted_where_it_is_nowhere_and_unmounted_at_the_end(tmp_path: Path, group: str) -> None:
    done = elsewhere(UNMOUNT.format("cgroup2"), OWN_MOUNT, HERE=str(tmp_path), GROUP=group)
    assert done.returncode == 0, done.stderr
    assert str(tmp_path / "cgroup" / "benchflow" / group / "one" / "leaf" / "cgroup.procs") in done.stdout


def test_limits_without_a_controller_are_told(tmp_path: Path, group: str) -> None:
    script = UNMOUNT.format("cgroup2") + "\n" + UNMOUNT.format("cgroup")
    done = elsewhere(script, OWN_MOUNT, HERE=str(tmp_path), GROUP=group)
    assert done.returncode == 0, done.stderr
    there = "memory" in Path("/sys/fs/cgroup/cgroup.controllers").read_text() if mounts_unified() else False
    for what in ("memory", "CPU", "process"):
        assert (f"the {what} limit is not enforced" in done.stdout) is not there


def mounts_unified() -> bool:
    return Path("/sys/fs/cgroup/cgroup.controllers").exists()


REFUSED = """
import os
from pathlib import Path
from benchflow.errors import SandboxUnavailableError
from benchflow.planes.sandbox.local.cgroups import Cgroups, SandboxLimits
try:
    Cgroups(Path(os.environ["HERE"]), "test-refused").sandbox("one").make(SandboxLimits())
except SandboxUnavailableError as error:
    print(error)
"""


def test_without_the_right_to_mount_there_is_a_remedy(tmp_path: Path) -> None:
    script = UNMOUNT.format("cgroup2") + '\nset -- setpriv --bounding-set=-sys_admin --inh-caps=-sys_admin "$@"'
    done = elsewhere(script, REFUSED, HERE=str(tmp_path))
    assert "none can be mounted" in done.stdout, done.stderr
    assert "remedy: run as root" in done.stdout


def test_without_the_right_to_make_groups_there_is_a_remedy(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    script = f'set -- {NOT_ROOT} "$@"'
    done = elsewhere(script, REFUSED, HERE=str(tmp_path))
    assert "cannot be made: Permission denied" in done.stdout, done.stderr
