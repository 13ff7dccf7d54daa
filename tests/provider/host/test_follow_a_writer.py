"""Reading a trajectory while another process writes it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from benchflow.paths import RolloutPaths
from benchflow.trajectories.follow import follow
from benchflow.trajectories.journal import read_journal

WRITER = """
import sys, time
from pathlib import Path
from benchflow.trajectories.journal import NodeWriter
directory, count = Path(sys.argv[1]), int(sys.argv[2])
writer = NodeWriter(directory / "trajectory" / "acp_trajectory.jsonl", "n1", "agent")
for number in range(count):
    writer.add([{"type": "agent_message", "text": f"{number} " + "ä" * (number % 700)}])
    time.sleep(0.0005)
writer.close()
(directory / "result.json").write_text("{}")
"""


async def test_every_event_of_a_process_that_writes_is_heard_once_in_order(tmp_path: Path) -> None:
    paths = RolloutPaths(tmp_path)
    writer = await asyncio.create_subprocess_exec(sys.executable, "-c", WRITER, str(paths.root), "2000")
    seen_early = False
    texts = []
    try:
        async with asyncio.timeout(240):
            async for event in follow(paths.trajectory, over=paths.result.exists, every=0.002):
                seen_early = seen_early or not paths.result.exists()
                texts.append(event)
    finally:
        assert await writer.wait() == 0
    assert seen_early
    assert texts == read_journal(paths.trajectory)
    assert [int(event["text"].split()[0]) for event in texts] == list(range(2000))
