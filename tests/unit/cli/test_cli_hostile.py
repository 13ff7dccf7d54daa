"""A terminal receives plain characters and our own styles, whatever a sandbox, a model or a task set wrote."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
import typer
from support.command_line import Bench
from support.hostile_text import FORGED, HOSTILE, OURS, raw_in
from support.told_rollouts import end, make_job, one_rollout, say
from typer.testing import CliRunner

from benchflow.cli.chosen import choose
from benchflow.cli.command import BenchCommand, Json
from benchflow.cli.terminal import Screen, Text, make_line
from benchflow.contracts.rollout_records import Failure
from benchflow.errors import BenchFlowError, StoreError

pytestmark = pytest.mark.usefixtures("state")

FAILURE = Failure(
    type="VerifierError",
    category="verifier",
    message=FORGED,
    file=f"task{HOSTILE}.toml",
    key=HOSTILE,
    remedy=FORGED,
    log_tail=FORGED * 3,
)


@pytest.fixture(autouse=True, params=["terminal", "pipe"])
def _to(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TEMPORAL_ADDRESS", "TEMPORAL_PROFILE", "TEMPORAL_CONFIG_FILE", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    if request.param == "terminal":
        for name, value in {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": "100"}.items():
            monkeypatch.setenv(name, value)


@pytest.fixture
def jobs(tmp_path: Path) -> Path:
    """A job of a task with a hostile name, whose rollout failed with a hostile error, log, reward and trajectory."""
    jobs = tmp_path / "jobs"
    make_job(jobs, f"org/{FORGED}")
    call = {"type": "tool_call", "tool_call_id": HOSTILE, "title": FORGED, "kind": HOSTILE, "status": "completed"}
    paths = choose("j", jobs).paths
    told = one_rollout(
        tmp_path / "other", say(FORGED), call | {"raw_output": FORGED}, {"type": HOSTILE, HOSTILE: FORGED}
    )
    paths.trajectory.parent.mkdir(parents=True)
    paths.trajectory.write_bytes(told.trajectory.read_bytes())
    rewards = {"reward": 0.5, f"style{FORGED}": 1.0}
    end(paths, task_name=f"org/{FORGED}", model=HOSTILE, status="errored", rewards=rewards, error=FAILURE)
    return jobs


@pytest.mark.parametrize(
    "command", ["job show j", "results j --all", "job list", "job watch j/", "rollout answer j/nobody", "tree show j/"]
)
def test_of_a_stored_job_nothing_raw_is_shown(bench: Bench, jobs: Path, command: str) -> None:
    ran = bench(*command.split(), "--jobs-dir", jobs)
    assert raw_in(ran.out) == raw_in(ran.err) == []
    # Wherever a row of the terminal ends.
    assert ("owned" in "".join((ran.out + ran.err).split())) is ("list" not in command)
    # It is text, and no link of the terminal's, nor an emoji.
    assert "]8;" not in ran.out and "💣" not in ran.out
    # What an attacker wrote on a line of its own begins behind something of ours.
    assert not any(row.startswith("  9 rollouts") for row in (ran.out + ran.err).splitlines())


@pytest.mark.parametrize("command", ["job show j", "results j", "job watch j/"])
def test_json_has_the_same_data_and_nothing_raw(bench: Bench, jobs: Path, command: str) -> None:
    ran = bench(*command.split(), "--jobs-dir", jobs, "--json")
    assert raw_in(ran.out) == []
    if command == "job watch j/":
        said, *_ = [json.loads(event) for event in ran.out.splitlines()]
        assert said["text"] == FORGED
    else:
        row = ran.json["rollouts"][0]
        assert (row["task_name"], row["error"]["message"]) == (f"org/{FORGED}", FORGED)


@pytest.mark.parametrize("options", [[], ["--json"], ["--verbose"]])
@pytest.mark.parametrize(
    "error",
    [StoreError(FORGED, file=HOSTILE, remedy=FORGED, log_tail=FORGED), ValueError(FORGED)],
    ids=["own", "other"],
)
def test_an_error_is_shown_without_anything_raw(error: Exception, options: list[str], bench: Bench) -> None:
    app = typer.Typer()

    @app.command(cls=BenchCommand)
    def fail(as_json: Json = False) -> None:
        raise error

    ran = CliRunner().invoke(app, options)
    assert raw_in(ran.stdout) == raw_in(ran.stderr) == []
    assert "owned" in ran.stderr
    if isinstance(error, BenchFlowError) and not options:
        plain = OURS.sub("", ran.stderr)
        assert "\n      9 rollouts" in plain and "\n  │   9 rollouts" in plain


def test_a_usage_error_quotes_its_argument_without_anything_raw(bench: Bench) -> None:
    for arguments in (["submit", f"--{HOSTILE}"], [HOSTILE], ["job", HOSTILE]):
        ran = bench(*(argument.replace("\0", "") for argument in arguments))
        assert ran.status == 2
        assert raw_in(ran.err) == [] and "]52;c" in ran.err


def test_a_tasks_files_are_quoted_without_anything_raw(bench: Bench, task: Path) -> None:
    hostile = task.rename(task.with_name(HOSTILE.replace("\0", "").replace("/", "")[:60]))
    (hostile / "task.md").write_text(f"---\n{json.dumps(HOSTILE)}: {json.dumps(FORGED)}\n---\nDo it.\n")
    for arguments in (["tasks", "check", hostile], ["submit", hostile, "--dry-run", "--sandbox", "noop"]):
        ran = bench(*arguments)
        assert raw_in(ran.out) == raw_in(ran.err) == []
        assert "owned" in ran.out + ran.err


def test_texts_styles_and_cells_are_sanitised_as_they_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.table import Table
    from rich.text import Text as Raw

    screen = Screen()
    plain = Table(HOSTILE, title=HOSTILE)
    plain.add_row(HOSTILE, Raw(HOSTILE, style="link https://evil.example"))
    screen.print(
        HOSTILE, Text(HOSTILE).append(HOSTILE), make_line(FORGED), Raw(HOSTILE), plain, markup=True, emoji=True
    )
    screen.print(Raw.from_markup(f"[link=https://evil.example]{HOSTILE}"))
    screen.out(HOSTILE)
    with screen.waiting(HOSTILE) as waiting:
        assert not isinstance(waiting, io.IOBase)
    found = capsys.readouterr().out
    assert raw_in(found) == []
    assert found.count("owned") >= 7
    assert "\x1b]8" not in found
