"""Environments in code as users name them: found, described, and refused with the key and the remedy."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any

import pytest
from support.board_environment import Board
from support.paths import SUPPORT
from support.stored_jobs import write_task

from benchflow.contracts.config import JobConfig
from benchflow.contracts.environment import EnvironmentRef, WorldState
from benchflow.errors import BenchFlowError, ConfigError, StateError
from benchflow.jobs import plan_job
from benchflow.jobs.job_plan import freeze
from benchflow.planes.environment import environment_code
from benchflow.planes.environment.environment_code import describe_environment, digest_environment, load_environment
from benchflow.planes.environment.exports import check_environment
from benchflow.store import Store

pytestmark = pytest.mark.usefixtures("state")

BOARD = {"environment_import_path": "board_environment:Board", "environment_root": SUPPORT}


def planned(tmp_path: Path, **options: Any) -> Any:
    if not (tmp_path / "tasks").exists():
        write_task(tmp_path / "tasks", "one")
    given = {"paths": [tmp_path / "tasks"], "jobs_dir": tmp_path / "jobs", "sandbox": "noop", "job_name": "job"}
    return plan_job(JobConfig.model_validate(given | options))


def refusal(tmp_path: Path, **options: Any) -> BenchFlowError:
    with pytest.raises(ConfigError) as caught:
        planned(tmp_path, **options)
    assert caught.value.remedy
    return caught.value


def written(tmp_path: Path, text: str) -> dict[str, Any]:
    (tmp_path / "mine.py").write_text(f"from benchflow.contracts.world import StatefulEnvironment\n{text}\n")
    return {"environment_import_path": "mine:Mine", "environment_root": tmp_path}


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a package installed that declares a board, and one that can't be loaded."""
    group = environment_code.GROUP
    points = EntryPoints(
        [
            EntryPoint("board", "support.board_environment:Board", group),
            EntryPoint("broken", "support.nowhere:Board", group),
        ]
    )
    monkeypatch.setattr(environment_code, "entry_points", lambda group: points.select(group=group))


async def test_one_by_import_path_reaches_the_jobs_specification(tmp_path: Path) -> None:
    plan = planned(tmp_path, **BOARD)
    assert plan.worlds["one"].manifest.name == "board"
    spec = await freeze(plan, Store.open())
    world = spec.tasks[0].environment
    assert world is not None
    assert (world.code, world.source, world.image) == ("board_environment:Board", "board_environment:Board", None)
    assert world.code_root == str(SUPPORT)
    # As the wire and the job's file carry it.
    assert EnvironmentRef.model_validate_json(world.model_dump_json()) == world
    check_environment(world, "job/one")


def test_one_by_entry_point_is_found(tmp_path: Path, installed: None) -> None:
    world = planned(tmp_path, environment_name="board").worlds["one"]
    assert (world.code, world.code_root) == ("board", None)
    assert world.manifest.readiness.timeout_sec == 60.0
    assert world.manifest.is_stateful


def test_what_a_class_declares_is_what_a_manifest_would() -> None:
    class Other(Board):
        name = "other"
        image = "other:1"
        ports = (9000,)
        is_stateful = False
        keep_alive = False
        isolation = "persistent"
        forward_env = ("KEY",)

    found = describe_environment(Other, "here:Other")
    assert (found.name, found.image, found.ports, found.isolation) == ("other", "other:1", (9000,), "persistent")
    assert (found.is_stateful, found.keep_alive, found.owns_lifecycle) == (False, False, False)
    assert found.forward_env.keys == ("KEY",)
    assert digest_environment(Other, found) != digest_environment(Board, describe_environment(Board, "here:Board"))


def test_an_unknown_name_is_refused_with_the_known_ones(tmp_path: Path, installed: None) -> None:
    error = refusal(tmp_path, environment_name="bord")
    assert error.key == "environment_name"
    assert "board, broken" in str(error.remedy)


def test_a_package_that_cannot_be_loaded_is_named(tmp_path: Path, installed: None) -> None:
    error = refusal(tmp_path, environment_name="broken")
    assert "support.nowhere:Board" in error.message


@pytest.mark.parametrize("path", ["nowhere:Mine", "json:Nothing", "module", ":Mine", "module:"])
def test_what_cannot_be_imported_is_refused(tmp_path: Path, path: str) -> None:
    assert refusal(tmp_path, environment_import_path=path).key == "environment_import_path"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("class Mine: pass", "is no subclass of"),
        ("Mine = object()", "is no subclass of"),
        ("class Mine(StatefulEnvironment): name = 'mine'", "does not define provision, query, readiness"),
        ("raise SystemExit(1)", "cannot be imported: SystemExit"),
    ],
)
def test_what_is_no_environment_is_refused(tmp_path: Path, text: str, message: str) -> None:
    assert message in refusal(tmp_path, **written(tmp_path, text)).message


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        ("name = 3", "name"),
        ("name = ''", "name"),
        ("image = 'no image'", "image"),
        ("ports = ('x',)", "ports"),
        ("isolation = 'shared'", "isolation"),
        ("readiness_timeout_sec = 0", "timeout_sec"),
        ("forward_env = ('A B',)", "forward_env"),
    ],
)
def test_a_wrong_attribute_is_named(tmp_path: Path, attribute: str, message: str) -> None:
    methods = "".join(
        f"    async def {name}(self, *args): ...\n"
        for name in ("provision", "readiness", "query", "snapshot", "restore", "reset", "teardown")
    )
    text = f"class Mine(StatefulEnvironment):\n    name = 'mine'\n    {attribute}\n{methods}"
    assert message in refusal(tmp_path, **written(tmp_path, text)).message


@pytest.mark.parametrize(
    "more", [{"environment_manifest": "environment.toml"}, {"environment_name": "board"}], ids=["manifest", "name"]
)
def test_two_worlds_for_all_tasks_are_refused(tmp_path: Path, more: dict[str, str]) -> None:
    assert "give one of the two" in str(refusal(tmp_path, **BOARD, **more).remedy)


def test_a_root_without_an_import_path_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path, environment_root=tmp_path).key == "environment_root"


def test_an_import_path_is_no_name(tmp_path: Path) -> None:
    assert refusal(tmp_path, environment_name="board_environment:Board").key == "environment_name"


def test_a_task_brings_the_image_that_the_class_does_not_name(tmp_path: Path) -> None:
    task = write_task(tmp_path / "tasks", "one")
    (task / "environment" / "Dockerfile").unlink()
    with pytest.raises(BenchFlowError) as caught:
        planned(tmp_path, **BOARD)
    assert "environment" in str(caught.value)


def test_the_episodes_of_several_tasks_may_share_a_sandbox(tmp_path: Path) -> None:
    text = (SUPPORT / "board_environment.py").read_text()
    (tmp_path / "mine.py").write_text(text.replace("    name =", '    isolation = "persistent"\n    name =', 1))
    for name in ("one", "two"):
        write_task(tmp_path / "tasks", name)
    plan = planned(tmp_path, environment_import_path="mine:Board", environment_root=tmp_path)
    assert (plan.worlds.keys(), plan.config.concurrency) == ({"one", "two"}, 1)


def test_a_changed_class_is_another_world(tmp_path: Path) -> None:
    text = (SUPPORT / "board_environment.py").read_text()
    (tmp_path / "mine.py").write_text(text)
    given = {"environment_import_path": "mine:Board", "environment_root": tmp_path}
    before = planned(tmp_path, **given).worlds["one"].ref(None).digest
    (tmp_path / "mine.py").write_text(text.replace("def _state", "def  _state"))
    assert planned(tmp_path, **given).worlds["one"].ref(None).digest != before


def test_what_a_job_began_with_does_not_change_in_a_process(tmp_path: Path) -> None:
    text = (SUPPORT / "board_environment.py").read_text()
    (tmp_path / "mine.py").write_text(text)
    first = load_environment("mine:Board", str(tmp_path), job="job/a")
    (tmp_path / "mine.py").write_text(text.replace('name = "board"', 'name = "changed"'))
    assert load_environment("mine:Board", str(tmp_path), job="job/a") is first
    assert load_environment("mine:Board", str(tmp_path), job="job/b").name == "changed"


def test_a_state_is_the_same_whatever_the_order_of_its_keys() -> None:
    assert WorldState.of({"a": 1, "b": [2]}).digest == WorldState.of({"b": [2], "a": 1}).digest
    assert WorldState.of([1]).digest != WorldState.of([2]).digest
    for data in (float("nan"), {1, 2}, b"x"):
        with pytest.raises(StateError, match="not JSON"):
            WorldState.of(data)
