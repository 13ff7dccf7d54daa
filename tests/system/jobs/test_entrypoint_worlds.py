"""Rollouts in a world whose image starts its services: built from the manifest's `image/`, told its task, watched."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.system_job import Results, SystemJobs, SystemTasks
from support.world_package import GET, POST, write_entrypoint_package

LOCAL = pytest.param("local", marks=pytest.mark.local)
DOCKER = pytest.param("docker", marks=pytest.mark.docker)
each_sandbox = pytest.mark.parametrize("found", [DOCKER, LOCAL], indirect=True)
seldom_in_docker = pytest.mark.parametrize(
    "found", [pytest.param("docker", marks=[pytest.mark.docker, pytest.mark.long]), LOCAL], indirect=True
)


def owned(root: Path, first: str) -> Path:
    """A world that its entrypoint owns. first: what is to be so of the first process."""
    return write_entrypoint_package(
        root,
        "owned",
        solve=f"set -e\n{first}\n"
        f'{GET}/environ | grep -q \'"WHICH_TASK": "owned"\'\n{POST}/add/paid\ntouch /root/answer\n',
    )


def others(root: Path) -> list[Path]:
    return [
        write_entrypoint_package(
            root,
            "told-by-command",
            selection='inject_into = "exec"\n',
            solve='[ "$WHICH_TASK" = told-by-command ] || exit 1\n'
            'tr "\\0" "\\n" </proc/1/environ | grep -q WHICH_TASK && exit 1\n'
            f"{GET}/environ | grep -q WHICH_TASK || touch /root/answer\n",
        ),
        write_entrypoint_package(
            root,
            "entrypoint-dies",
            solve=f"{POST}/die\nsleep 3600\n",
            test="echo 1 >/logs/verifier/reward.txt",
        ),
        write_entrypoint_package(
            root,
            "entrypoint-ends-early",
            head="keep_alive = false\n",
            solve=f"{POST}/add/x && touch /root/answer\n",
            test=f"{GET}/all && r=0 || r=1\n[ -e /root/answer ] || r=0\necho $r >/logs/verifier/reward.txt\n",
        ),
    ]


def system_tasks(root: Path) -> SystemTasks:
    # On Docker the entrypoint is the very first process; a local sandbox has one of the engine's before it.
    first = "tr '\\0' '\\n' </proc/1/environ | grep -qx WHICH_TASK=owned\n"
    first += "tr '\\0' ' ' </proc/1/cmdline | grep -q 'ledger /data/ledger.db 9000'"
    in_docker = owned(root / "docker", first)
    return {"local": [owned(root, ":"), *others(root)], "docker": [in_docker]}


def long_system_tasks(root: Path) -> SystemTasks:
    return {"docker": others(root / "docker")}


@pytest.fixture
def found(request: pytest.FixtureRequest, system_jobs: SystemJobs) -> Results:
    """The results of a provider."""
    results: Results = request.getfixturevalue(f"{request.param}_results")
    return results


@each_sandbox
def test_the_entrypoint_owns_the_world_and_knows_its_task(found: Results) -> None:
    result = found["owned"]
    assert (result.error, result.rewards) == (None, {"reward": 1.0})
    root = Path(str(result.directory), "environment")
    [database] = json.loads((root / "state" / "final" / "diff.json").read_text())["databases"]
    assert database["tables"][0]["added"] == [{"n": 1, "text": "paid"}]
    assert "the ledger is open" in "".join(log.read_text() for log in (root / "logs").iterdir())
    assert {probe["target"] for probe in result.environment["world"]["probes"]} == {
        "http://localhost:9000/health",
        "tcp://localhost:9000",
    }
    assert "9000" in result.environment["world"]["ports"]


@seldom_in_docker
def test_what_is_injected_into_commands_does_not_reach_the_first_process(found: Results) -> None:
    assert found["told-by-command"].rewards == {"reward": 1.0}


@seldom_in_docker
def test_an_entrypoint_that_ends_is_the_rollouts_failure(found: Results) -> None:
    result = found["entrypoint-dies"]
    assert result.error is not None
    assert (result.rewards, result.error.category) == (None, "service")
    assert "exit status 7" in result.error.message and "wants me to die" in (result.error.log_tail or "")


@seldom_in_docker
def test_an_entrypoint_world_that_is_not_kept_alive_ends_before_the_verifier(found: Results) -> None:
    assert found["entrypoint-ends-early"].rewards == {"reward": 1.0}
