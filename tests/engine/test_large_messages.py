"""Rollouts whose messages are larger than a history takes: they end as any other."""

from __future__ import annotations

from support.in_process_worker import InProcessWorker

TURNS = 30
INSTRUCTION = "Play on. " * 10_000
TASK = f"""\
---
environment:
  docker_image: nothing
agents:
  roles:
    player: {{agent: oracle}}
scenes:
  - name: play
    turns: [{", ".join(["{role: player}"] * TURNS)}]
---
{INSTRUCTION}
"""


async def test_a_plan_and_a_report_of_megabytes_travel(worker: InProcessWorker) -> None:
    task = worker.task()
    for file in ("task.toml", "instruction.md"):
        (task / file).unlink()
    (task / "task.md").write_text(TASK)
    job = await worker.submit(task, retry={"max_retries": 0})
    (result,) = await worker.results(job)
    assert (result.status, result.reward, result.error, result.n_prompts) == ("passed", 1.0, None, TURNS)
    assert all(outcome.step.prompt == INSTRUCTION.strip() for outcome in result.steps)
    blobs = [path for path in (worker.root / "state" / "store" / "bulk").rglob("*") if path.is_file()]
    assert max(blob.stat().st_size for blob in blobs) > TURNS * len(INSTRUCTION)
