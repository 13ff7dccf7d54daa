"""What stands between an agent and its trajectory: latency, throughput, memory, and the change of workers.

    python benchmarks/perf/session.py [--runs N] [--sandbox local|docker] [--json]

An agent that streams as fast as it is let (a small Node program), in a real sandbox, its stdio held by the pump, heard
by a session in this process and written into a trajectory file as the worker does it. Medians over the runs:

    latency_ms         {p50, p99} from the agent's write of a message until another process, which looks once a
                       millisecond, has read the event from the trajectory; messages 10 ms apart on average
    updates_per_s      through one session: from the prompt until the last of its messages is in the file
    updates_per_s_16   through sixteen sessions at once, each with a sandbox of its own: the sum
    cpu_us_per_update  CPU of this process alone, from the latter: what a worker has to spend, whoever else is busy
    worker_rss_mb      {start, peak, end} of this process while it follows a journal of 1 GB
    reattach_s         from SIGTERM of a stack's worker until the next one writes what the agent of a running job says
    reattach_kill_s    the same from SIGKILL
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_streams import Stream, streams
from local_steps import why_left_out
from measured_stack import rss_mb_of
from reattachment import measure_reattachment

READER = Path(__file__).with_name("trajectory_reader.py")
SESSIONS = 16
EVERY_MS = 10
LINE_BYTES = 16 * 1024
"""Of a message in the journal that memory is measured with."""

WARM_UP = 20
"""Messages that do not count."""

# The least and the most that is aimed at, for the sizes that are measured where no others are asked for.
MOST = {"latency_ms_p50": 20.0, "reattach_s": 3.0}
LEAST = {"updates_per_s": 5000.0}


@dataclass(frozen=True)
class Sizes:
    """How much is measured. messages: through one session; paced: for latency; journal_mb: for memory."""

    messages: int = 50_000
    paced: int = 1000
    journal_mb: int = 1000


class Sessions:
    """The measurements of one sandbox provider. Samples by name, one a run."""

    def __init__(self, sandbox: str, sizes: Sizes, root: Path) -> None:
        self._sandbox, self._sizes, self._root = sandbox, sizes, root
        self.samples: dict[str, list[float]] = defaultdict(list)

    async def memory(self) -> dict[str, float]:
        """First of all, while the process is as small as a worker's."""
        async with self._streams(1) as (stream,):
            await stream.turn(WARM_UP, bytes=LINE_BYTES)
            seen = [_rss()]
            sampling = asyncio.create_task(_sample(seen))
            await stream.turn(self._sizes.journal_mb * 1_000_000 // LINE_BYTES, bytes=LINE_BYTES)
            sampling.cancel()
            said = stream.wire.output_size / 1e6
        seen.append(_rss())
        return {
            "start": round(seen[0], 1),
            "peak": round(max(seen), 1),
            "end": round(seen[-1], 1),
            "said_mb": round(said),
        }

    async def run(self) -> None:
        """Each measurement once."""
        async with self._streams(1) as (stream,):
            await stream.turn(WARM_UP)
            self.samples["updates_per_s"].append((await self._flood([stream], self._sizes.messages))[0])
        async with self._streams(1) as (stream,):
            late = await self._latencies(stream)
            self.samples["latency_ms_p50"].append(statistics.median(late))
            self.samples["latency_ms_p99"].append(statistics.quantiles(late, n=100)[98])
        async with self._streams(SESSIONS) as several:
            rate, cpu = await self._flood(several, max(1, 2 * self._sizes.messages // SESSIONS))
            self.samples["updates_per_s_16"].append(rate)
            self.samples["cpu_us_per_update"].append(cpu)

    async def _flood(self, several: list[Stream], each: int) -> tuple[float, float]:
        """(updates a second, CPU microseconds of this process an update)."""
        began, cpu = time.monotonic(), time.process_time()
        await asyncio.gather(*(stream.turn(each) for stream in several))
        took = max(stream.last_at for stream in several) - began
        total = each * len(several)
        return total / took, 1e6 * (time.process_time() - cpu) / total

    async def _latencies(self, stream: Stream) -> list[float]:
        """Milliseconds, as another process finds them."""
        count = self._sizes.paced + WARM_UP
        reader = await asyncio.create_subprocess_exec(
            *(sys.executable, READER, stream.trajectory, str(count)), stdout=asyncio.subprocess.PIPE
        )
        assert reader.stdout is not None
        try:
            await reader.stdout.readline()
            await stream.turn(count, every_ms=EVERY_MS)
            return list(json.loads(await reader.stdout.read()))[WARM_UP:]
        finally:
            if not reader.stdout.at_eof():
                reader.kill()
            await reader.wait()

    @asynccontextmanager
    async def _streams(self, count: int) -> AsyncIterator[list[Stream]]:
        with tempfile.TemporaryDirectory(dir=self._root) as directory:
            async with streams(self._sandbox, count, Path(directory)) as made:
                yield made


def _rss() -> float:
    return rss_mb_of(os.getpid())


async def _sample(seen: list[float]) -> None:
    while True:
        seen.append(_rss())
        await asyncio.sleep(0.02)


def measure(sandbox: str, runs: int, sizes: Sizes) -> dict[str, Any]:
    """The measurement as the one object that `--json` prints."""
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="bf-perf-") as root:
        os.environ["BENCHFLOW_STATE_DIR"] = str(Path(root) / "state")
        sessions = Sessions(sandbox, sizes, Path(root))
        memory = asyncio.run(sessions.memory())
        for _ in range(runs):
            asyncio.run(sessions.run())
    samples = sessions.samples | measure_reattachment(sandbox, runs)
    found: dict[str, Any] = {name: round(statistics.median(values), 3) for name, values in samples.items()}
    targets = _judged(found) if sizes == Sizes() else {}
    return found | {
        "latency_ms": {"p50": found.pop("latency_ms_p50"), "p99": found.pop("latency_ms_p99")},
        "worker_rss_mb": memory,
        "range": {name: [round(min(values), 3), round(max(values), 3)] for name, values in samples.items()},
        "targets": targets,
        "runs": runs,
        "sandbox": sandbox,
        "machine": {"cores": os.cpu_count(), "load_before": load_before, "load_after": os.getloadavg()[0]},
    }


def _judged(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    most = {name: {"limit": limit, "met": found[name] <= limit} for name, limit in MOST.items()}
    return most | {name: {"least": least, "met": found[name] >= least} for name, least in LEAST.items()}


def show(found: dict[str, Any]) -> str:
    """The measurement for people."""
    flat = found | {f"latency_ms_{name}": value for name, value in found["latency_ms"].items()}
    lines = [f"{'':20}{'median':>12}{'min':>12}{'max':>12}  target"]
    for name, (low, high) in found["range"].items():
        lines.append(f"{name:20}{flat[name]:12.3f}{low:12.3f}{high:12.3f}  {_verdict(found['targets'].get(name))}")
    memory = "  ".join(f"{name} {value:g}" for name, value in found["worker_rss_mb"].items())
    return "\n".join([*lines, f"{'worker_rss_mb':20}  {memory}"])


def _verdict(target: dict[str, Any] | None) -> str:
    if target is None:
        return ""
    limit = f"≤ {target['limit']:g}" if "limit" in target else f"≥ {target['least']:g}"
    return f"{limit} {'met' if target['met'] else 'NOT MET'}"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, metavar="N", help="how often all is measured (default: 5)")
    parser.add_argument("--sandbox", choices=["local", "docker"], help="where (default: local, if it works)")
    number: dict[str, Any] = {"type": int, "metavar": "N"}
    parser.add_argument("--messages", **number, default=Sizes.messages, help="through a session (default: %(default)s)")
    parser.add_argument("--paced", **number, default=Sizes.paced, help="for latency (default: %(default)s)")
    parser.add_argument("--journal-mb", **number, default=Sizes.journal_mb, help="for memory (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    if min(options.runs, options.messages, options.journal_mb) < 1 or options.paced < 2:
        parser.error("--runs, --messages and --journal-mb are at least 1, --paced at least 2")
    problem = why_left_out() if options.sandbox != "docker" else None
    if problem and options.sandbox:
        parser.error(f"--sandbox local: {problem}")
    sizes = Sizes(options.messages, options.paced, options.journal_mb)
    found = measure(options.sandbox or ("docker" if problem else "local"), options.runs, sizes)
    print(json.dumps(found, indent=2) if options.json else show(found))


if __name__ == "__main__":
    main()
