"""Run tasks with Harbor itself, in its Docker sandbox with its oracle. Runs in Harbor's environment.

    read.py ROOT OUT CONCURRENCY NAME...

Writes OUT/readings.json: by task, the rewards that Harbor reads, those of each step, and how it failed.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Any

from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig
from harbor.trial.trial import Trial


async def main(root: Path, out: Path, concurrency: int, names: list[str]) -> None:
    places = asyncio.Semaphore(concurrency)

    async def read(name: str) -> dict[str, Any]:
        async with places:
            began = time.monotonic()
            place = str(out / name)
            config = TrialConfig(
                task=TaskConfig(path=root / name),
                trial_name=name,
                trials_dir=out,
                agent=AgentConfig(name="oracle"),
                environment=EnvironmentConfig(type="docker", delete=True),
            )
            try:
                trial = await Trial.create(config)
                result = await trial.run()
            except Exception as error:
                return {"rewards": None, "error": said(type(error).__name__, str(error)), "steps": None, "place": place}
            steps = {
                step.step_name: {"rewards": rewards_of(step), "error": error_of(step)}
                for step in result.step_results or []
            }
            seconds = round(time.monotonic() - began, 1)
            reading = {"rewards": rewards_of(result), "error": error_of(result), "steps": steps}
            return reading | {"place": place, "seconds": seconds}

    readings = await asyncio.gather(*(read(name) for name in names))
    (out / "readings.json").write_text(json.dumps(dict(zip(names, readings, strict=True)), indent=1))


def rewards_of(result: Any) -> dict[str, float] | None:
    return None if result.verifier_result is None else result.verifier_result.rewards


def error_of(result: Any) -> str | None:
    error = result.exception_info
    return None if error is None else said(error.exception_type, error.exception_message)


def said(kind: str, message: str) -> str:
    # Of a command that failed, its output comes last.
    return f"{kind}: {message if len(message) < 2000 else f'{message[:300]} … {message[-1700:]}'}"


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]))
