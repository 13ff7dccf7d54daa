"""Rollouts in a world, whose worker and server are killed at moments that nobody chose: one world each, and one of all.

The solution writes into a service of the world; the verifier finds that entry once, by asking the service and in what
the engine says has changed. The service's own log tells how often it was started.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import get_args

import pytest
from support.counted_task import BASE_IMAGE, write_counted_task
from support.embedded import EmbeddedStack, Role, chance_of_this_run
from support.paths import SUPPORT
from support.scored import assert_each_scored_once, assert_nothing_is_left, submit_job
from support.worlds import everywhere

from benchflow.contracts.rollout_records import Phase

LEDGER = SUPPORT / "ledger.py"
MANIFEST = f"""\
[environment]
name = "ledger"
base_image = "{BASE_IMAGE}"
owns_lifecycle = false
keep_alive = {{kept}}

[environment.task_selection]
mechanism = "image"

[[environment.services]]
name = "ledger"
command = "ledger /data/ledger.db 9000"
port = 9000

[environment.state]
paths = ["/data/ledger.db"]
"""
URL = "http://localhost:9000"
POST = f'python3 -c \'import urllib.request as u; u.urlopen(u.Request("{URL}/add/solved", method="POST"))\'\n'
CHECK = f"""\
python3 - {{kept}} <<'END' || exit 1
import json, os, sys, urllib.error, urllib.request
try:
    assert json.load(urllib.request.urlopen("{URL}/all")) == ["solved"] and sys.argv[1] == "true"
except urllib.error.URLError:
    assert sys.argv[1] == "false"
[database] = json.load(open(os.environ["BENCHFLOW_ENVIRONMENT"] + "/diff.json"))["databases"]
assert database["tables"][0]["added"] == [{{{{"n": 1, "text": "solved"}}}}]
END
"""


def write_package(root: Path, count: int, sandbox: str, *, kept: str) -> Path:
    """kept: `true` or `false`, whether the world is there when the verifier runs."""
    for number in range(count):
        task = write_counted_task(
            root / "tasks", f"world-{number}", sandbox, setup_sec=0.2, solve_sec=1.0, verify_sec=0.3, build=True
        )
        environment = task / "environment"
        (environment / "ledger").write_bytes(LEDGER.read_bytes())
        with (environment / "Dockerfile").open("a") as dockerfile:
            dockerfile.write("COPY ledger /usr/local/bin/ledger\nRUN chmod 755 /usr/local/bin/ledger && mkdir /data\n")
        for script, more in (("solution/solve.sh", POST), ("tests/test.sh", CHECK.format(kept=kept))):
            head, _, rest = (task / script).read_text().partition("\n")
            (task / script).write_text(f"{head}\n{more}{rest}")
    (root / "environment.toml").write_text(MANIFEST.format(kept=kept))
    return root


def assert_one_world_each(results: list[Path]) -> None:
    for directory in results:
        assert (directory / "environment" / "logs" / "ledger.log").read_text().count("the ledger is open") == 1
        diff = json.loads((directory / "environment" / "state" / "final" / "diff.json").read_text())
        assert diff["databases"][0]["tables"][0]["n_added"] == 1


@everywhere
@pytest.mark.parametrize(
    ("kills", "tasks"), [pytest.param(4, 2, marks=pytest.mark.long), pytest.param(40, 4, marks=pytest.mark.soak)]
)
async def test_a_world_is_started_once_and_ends_as_if_nothing_had_happened(
    stack: EmbeddedStack, tmp_path: Path, kills: int, tasks: int
) -> None:
    chance = chance_of_this_run()
    victims: list[tuple[Role, ...]] = [("worker",), ("worker", "server")]
    # Half of the kills in each way to end.
    halves = dict.fromkeys(("true", "false"), kills // 2)
    packages = {kept: write_package(tmp_path / kept, tasks, stack.sandbox, kept=kept) for kept in halves}
    number = 0
    while kept := next((kept for kept, left in halves.items() if left), None):
        job = await submit_job(stack, [packages[kept]], tmp_path / "jobs", f"crash-{number}", concurrency=4)
        number += 1
        ended = asyncio.create_task(job.wait())
        while not ended.done():
            # Not a wait for anything: the moment of the crash is what is random.
            await asyncio.wait({ended}, timeout=chance.uniform(0.2, 2))
            if halves[kept] and not ended.done() and stack.kill(*chance.choice(victims)):
                halves[kept] -= 1
        await ended
        assert_each_scored_once(job, stack)
        assert_one_world_each([Path(str(result.directory)) for result in job.results()])
        assert {"readiness", "execute"} <= {*job.results()[0].timing} <= {*get_args(Phase)}
    await assert_nothing_is_left(stack)
