"""Run the tests and print where the time goes: fixtures, tests, processes started.

    python tools/test_times.py [--top N] [--records DIR] COMMAND [ARG ...]

Runs COMMAND (a pytest command line, or `make test`) with the plugin `tests/support/times.py`, and counts the programs
that any process of this machine starts meanwhile, by the kernel's process connector (Linux, root; without it the count
is left out). `make test-times` calls it. `--records DIR` keeps the raw records there, or, without a COMMAND, prints
those of an earlier run again.

`--keep SECONDS` adds to `tests/slowest.txt` the slowest tests that hold no guarantee, unit tests excepted, until the
others take so long together, in process-seconds. `make test` leaves them to `make test-all`.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NETLINK_CONNECTOR = 11
CN_IDX_PROC = CN_VAL_PROC = 1
PROC_EVENT_EXEC = 2
SO_RCVBUFFORCE = 33
HEADERS = struct.Struct("=IHHII IIIIHH")
"""nlmsghdr and cn_msg; the event follows."""


class ExecCounter:
    """Counts programs by name as they are started, on the whole machine, from `start` to `stop`."""

    def __init__(self) -> None:
        self.names: collections.Counter[str] = collections.Counter()
        self.lost = 0
        self._stop = threading.Event()
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, NETLINK_CONNECTOR)
        self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 16 << 20)
        self._socket.bind((0, CN_IDX_PROC))
        listen = struct.pack("=I", 1)
        size = HEADERS.size + len(listen)
        message = HEADERS.pack(size, 3, 0, 0, os.getpid(), CN_IDX_PROC, CN_VAL_PROC, 0, 0, len(listen), 0)
        self._socket.send(message + listen)
        self._socket.settimeout(0.5)
        self._thread = threading.Thread(target=self._count, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
        self._socket.close()

    def _count(self) -> None:
        while not self._stop.is_set():
            try:
                event = self._socket.recv(4096)[HEADERS.size :]
            except TimeoutError:
                continue
            except OSError:
                # The kernel dropped events because the buffer was full.
                self.lost += 1
                continue
            if struct.unpack_from("=I", event)[0] == PROC_EVENT_EXEC:
                (pid,) = struct.unpack_from("=I", event, 16)
                self.names[_program(pid)] += 1


def _program(pid: int) -> str:
    """Return a short name of the program that a process runs, `(gone)` if it ended before it could be read."""
    try:
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "(gone)"
    words = [word.decode(errors="replace") for word in argv if word]
    if not words:
        return "(gone)"
    name = Path(words[0]).name
    if name.startswith("python") and "-m" in words[:-1]:
        return f"python -m {words[words.index('-m') + 1]}"
    return f"temporal {words[1]}" if name == "temporal" and len(words) > 1 else name


def read_records(directory: Path) -> list[dict[str, object]]:
    return [json.loads(line) for file in sorted(directory.glob("*.jsonl")) for line in file.read_text().splitlines()]


def print_report(rows: list[dict[str, object]], top: int) -> None:
    seconds: dict[str, float] = collections.defaultdict(float)
    for row in rows:
        seconds[str(row["kind"])] += float(str(row["seconds"]))
    print(f"\nseconds, added over all processes: {', '.join(f'{kind} {value:.0f}' for kind, value in seconds.items())}")

    fixtures: dict[str, list[float]] = collections.defaultdict(list)
    for row in rows:
        if row["kind"] == "fixture":
            fixtures[f"{row['name']} ({row['scope']}, {row['base'] or '.'})"].append(float(str(row["seconds"])))
    print(
        f"\nslowest fixtures (without those they depend on)\n{'total':>8} {'times':>6} {'median':>8} {'most':>8}  name"
    )
    for name, times in sorted(fixtures.items(), key=lambda item: -sum(item[1]))[:top]:
        print(f"{sum(times):8.1f} {len(times):6} {sorted(times)[len(times) // 2]:8.2f} {max(times):8.2f}  {name}")

    tests: dict[str, dict[str, float]] = collections.defaultdict(lambda: collections.defaultdict(float))
    for row in rows:
        if row["kind"] != "fixture":
            tests[str(row["test"])][str(row["kind"])] += float(str(row["seconds"]))
    for title, key in (("tests", lambda name: name), ("files", lambda name: name.partition("::")[0])):
        sums: dict[str, dict[str, float]] = collections.defaultdict(lambda: collections.defaultdict(float))
        for name, phases in tests.items():
            for phase, value in phases.items():
                sums[key(name)][phase] += value
        print(f"\nslowest {title}\n{'total':>8} {'setup':>8} {'call':>8} {'teardown':>8}  name")
        for name, phases in sorted(sums.items(), key=lambda item: -sum(item[1].values()))[:top]:
            columns = " ".join(f"{phases.get(phase, 0.0):8.2f}" for phase in ("setup", "call", "teardown"))
            print(f"{sum(phases.values()):8.2f} {columns}  {name}")


def write_slowest(rows: Sequence[Mapping[str, object]], seconds: float) -> None:
    """Write the list of tests that `make test` leaves out, so that the others take at most `seconds` together."""
    sys.path.insert(0, str(ROOT / "tests"))
    from support import slowest

    cases: dict[str, dict[str, float]] = collections.defaultdict(lambda: collections.defaultdict(float))
    for row in rows:
        if row["kind"] != "fixture":
            cases[slowest.name_of(str(row["test"]))][str(row["test"])] += float(str(row["seconds"]))
    guarantees = slowest.guaranteed()
    left = sum(sum(times.values()) for times in cases.values())
    # Those that are left out already were not measured.
    chosen = [name for name in slowest.listed() if name not in cases]
    for name, times in sorted(cases.items(), key=lambda case: -sum(case[1].values()) / len(case[1])):
        if left <= seconds:
            break
        if not slowest.is_always_run(name, guarantees):
            chosen.append(name)
            left -= sum(times.values())
    head = "# The slowest tests that hold no guarantee; written by tools/test_times.py --keep\n"
    slowest.LIST.write_text(head + "".join(f"{name}\n" for name in sorted(chosen)))
    print(f"\n{len(chosen)} tests of {len(cases)} are left to long runs; the others take {left:.0f} process-seconds")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--top", type=int, default=30, help="rows of each table")
    parser.add_argument("--records", type=Path, help="directory of the raw records")
    parser.add_argument("--keep", type=float, metavar="SECONDS", help="write the list of tests that are too slow")
    parser.add_argument("command", nargs="*")
    options = parser.parse_args()
    records = options.records or Path(tempfile.mkdtemp(prefix="test-times-"))
    status = 0
    if options.command:
        records.mkdir(parents=True, exist_ok=True)
        environment = os.environ | {
            "BENCHFLOW_TEST_TIMES": str(records.resolve()),
            "PYTEST_ADDOPTS": f"{os.environ.get('PYTEST_ADDOPTS', '')} -p support.times",
            "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])),
        }
        try:
            counter = ExecCounter()
        except OSError as error:
            counter = None
            print(f"processes are not counted: {error}", file=sys.stderr)
        started = time.monotonic()
        status = subprocess.run(options.command, env=environment).returncode
        minutes = (time.monotonic() - started) / 60
        print(f"\n{minutes:.1f} minutes, exit status {status}")
        if counter is not None:
            counter.stop()
            lost = f" (and at least {counter.lost} that the kernel did not report)" if counter.lost else ""
            print(f"{counter.names.total()} programs started{lost}; by name:")
            for name, count in counter.names.most_common(options.top):
                print(f"{count:8}  {name}")
    rows = read_records(records)
    print_report(rows, options.top)
    if options.keep is not None:
        write_slowest(rows, options.keep)
    return status


if __name__ == "__main__":
    sys.exit(main())
