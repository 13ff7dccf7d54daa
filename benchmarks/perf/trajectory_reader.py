"""Another process that reads a trajectory while it is written: how late each message is, in milliseconds.

    python trajectory_reader.py FILE COUNT

It says `ready`, reads as many messages, and prints a JSON list: the time from the agent's writing of the message, which
stands at its beginning, until the message was read here. Both are the monotonic clock of the one kernel.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

from benchflow.trajectories.follow import follow

LOOK_EVERY = 0.001


async def read(path: Path, count: int) -> list[float]:
    late: list[float] = []
    async for event in follow(path, over=lambda: len(late) >= count, every=LOOK_EVERY):
        now = time.monotonic_ns()
        late.append((now - int(event["text"].split()[0])) / 1e6)
    return late


if __name__ == "__main__":
    print("ready", flush=True)
    print(json.dumps(asyncio.run(read(Path(sys.argv[1]), int(sys.argv[2])))))
