"""`bench rescore`: score the stored rollouts of a job again, and show which scores have changed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from benchflow.cli import command
from benchflow.cli.command import Json, Trust, Yes
from benchflow.cli.model_options import ModelCommand, OptionFacts, set_keys

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text as StyledText

    from benchflow.cli.terminal import Screen
    from benchflow.contracts.rollout_records import Failure
    from benchflow.rescoring import RescoredRollout, Rescoring, RescoringRequest

_SIGNS = {
    "unchanged": ("=", "dim"),
    "changed": ("≠", "yellow"),
    "failed": ("!", "red"),
    "unmeasured": ("–", "magenta"),
}
"""Sign and style of each outcome."""

_VERIFIERS = {"ran": "ran again", "stored": "stored"}
"""Text for where a verifier's result comes from."""

MAX_ROWS = 60
"""Maximum number of rollouts that are listed. Of more, only those that changed or failed are."""

MAX_ERRORS = 3
"""Maximum number of errors that are printed in full."""

_WHICH = "Which rollouts"
_RUN = "How it is run"


class RescoreCommand(ModelCommand):
    """The command `bench rescore`, with the fields of `RescoringRequest` as options."""

    panels = {
        None: {"allow_code": OptionFacts("MODULE")},
        _WHICH: {"include": OptionFacts("PATTERN", "--include --task-pattern")},
        "What scores": {
            "rubric": OptionFacts("FILE | MODULE:OBJECT"),
            "tasks": OptionFacts("DIR"),
            "ask_again": OptionFacts(),
            "trust_workspace": OptionFacts(),
            "judge.model": OptionFacts(),
            "judge.base_url": OptionFacts(),
            "judge.credential": OptionFacts("NAME", "--judge-key"),
        },
        _RUN: {
            "sandbox": OptionFacts("NAME"),
            "concurrency": OptionFacts(None, "-n --concurrency"),
            "name": OptionFacts(),
        },
    }
    other_panel = _RUN
    no_options = frozenset({"trust", "take_variables"})

    def model(self) -> type[RescoringRequest]:
        """Return `RescoringRequest`."""
        from benchflow.contracts.rescoring_request import RescoringRequest

        return RescoringRequest


def rescore(
    context: typer.Context,
    job: Annotated[str, typer.Argument(metavar="NAME_OR_DIR", help="A job's name or directory.", show_default=False)],
    jobs_dir: Annotated[
        Path,
        typer.Option("--jobs-dir", metavar="DIR", help="The directory that holds the jobs.", rich_help_panel=_WHICH),
    ] = Path("jobs"),
    trust: Trust = False,
    yes: Yes = False,
    as_json: Json = False,
) -> None:
    """Score the stored rollouts of a job again, without running an agent.

    The new scores lie beside the old ones, in rescored/NAME of each rollout;
    the old ones are not touched. Exit status: 0 all were scored, also when
    scores changed; 1 some could not be; 2 the request is wrong.
    """
    from benchflow.cli.bench_results import find_job_paths
    from benchflow.cli.screen import make_console, print_json
    from benchflow.rescoring import RescoringRequest, make_record_row

    options: dict[str, Any] = {"trust": trust, "take_variables": yes}
    set_keys(options, context.obj)
    request = RescoringRequest(**options)
    screen = make_console(stderr=as_json)
    found = _run(find_job_paths(job, jobs_dir).root, request, screen)
    if as_json:
        told = found.model_dump(mode="json", exclude={"rollouts"})
        print_json(told | {"rollouts": [make_record_row(rollout) for rollout in found.rollouts]})
    else:
        _show_rows(found.rollouts, screen)
        _show_errors(found.rollouts)
    _show_totals(found, screen)
    raise typer.Exit(command.SOME_ERRORED if found.counts.failed else command.ALL_SCORED)


def _run(directory: Path, request: RescoringRequest, screen: Screen) -> Rescoring:
    """Run the job that scores, and return its result. Ctrl-C cancels it; rollouts that are complete are retained.

    On a terminal, the board of the job is shown, elsewhere a line for each rollout that is scored.
    """
    from benchflow.cli.in_job import run_in_job
    from benchflow.cli.terminal import make_line
    from benchflow.rescoring import rescore

    def say(rollout: RescoredRollout, done: int, total: int) -> None:
        if not screen.is_terminal:
            parts = (f"{rollout.outcome:10}", _reward_change(rollout), _format_label(rollout), _format_error(rollout))
            screen.print(make_line("  ".join(part for part in parts if part)), soft_wrap=True)

    return run_in_job(lambda on_start: rescore(directory, request, on_update=say, on_start=on_start), screen)


# --- for people ------------------------------------------------------------------------------------------


def _show_rows(rollouts: Sequence[RescoredRollout], screen: Screen) -> None:
    """Print the table of rescored rollouts, and the number of those that it leaves out."""
    from benchflow.cli.screen import format_count
    from benchflow.cli.terminal import Text

    shown = list(rollouts)
    if len(shown) > MAX_ROWS:
        shown = [rollout for rollout in rollouts if rollout.outcome in ("changed", "failed")][:MAX_ROWS]
    if shown:
        screen.print(_make_rows(shown, several=any(rollout.repeat for rollout in rollouts)))
    if len(shown) < len(rollouts):
        rest = format_count(len(rollouts) - len(shown), "rollout")
        screen.print(Text(f"{rest} not listed; all are in the file below", "dim"))


def _make_rows(rollouts: Sequence[RescoredRollout], *, several: bool) -> Table:
    from benchflow.cli.plain import join_lines
    from benchflow.cli.screen import fit, format_reward, make_table
    from benchflow.cli.terminal import Text

    left: dict[str, Any] = {"no_wrap": True}
    right = left | {"justify": "right"}
    numbers = (("before", right), ("now", right))
    rows = make_table("task", "agent", *numbers, ("score", left), ("verifier", left), "what changed")
    for rollout in rollouts:
        sign, style = _SIGNS[rollout.outcome]
        # The warnings of a verifier that gave the same score again are of no interest.
        notes = [] if rollout.outcome == "unchanged" and rollout.verifier == "ran" else rollout.warnings
        about = join_lines(_format_error(rollout) or _format_changes(rollout) or "; ".join(notes))
        rows.add_row(
            fit(f"{rollout.task_name} #{rollout.repeat}" if several else rollout.task_name),
            fit(rollout.agent_label),
            format_reward(rollout.reward_before),
            Text(format_reward(rollout.reward), f"bold {style}"),
            Text(f"{sign} {rollout.outcome}", style),
            Text(_VERIFIERS.get(rollout.verifier or "", ""), "dim"),
            fit(about, "" if rollout.outcome == "changed" else "dim"),
        )
    return rows


def _format_changes(rollout: RescoredRollout) -> str:
    """Return the changes of all scores but the reward: `style 0.5 → 0.7`."""
    from benchflow.cli.screen import format_reward

    return ", ".join(
        f"{name} {format_reward(change.before)} → {format_reward(change.after)}"
        for name, change in rollout.changes.items()
        if name != "reward"
    )


def _format_error(rollout: RescoredRollout) -> str:
    """Return the error of a rollout without a score; empty for one that has a score."""
    from benchflow.cli.screen import find_first_line

    failure = rollout.error
    return f"{failure.category}: {find_first_line(failure.message)}" if failure is not None else ""


def _format_label(rollout: RescoredRollout) -> str:
    """Return a rollout as `task #repeat · agent`."""
    return f"{rollout.task_name} #{rollout.repeat} · {rollout.agent_label}"


def _reward_change(rollout: RescoredRollout) -> str:
    """Return the change of a reward as `0.5 → 1`, padded."""
    from benchflow.cli.screen import format_reward

    return f"{format_reward(rollout.reward_before):>5} → {format_reward(rollout.reward):<5}"


def _show_errors(rollouts: Sequence[RescoredRollout]) -> None:
    """Print the first errors in full, one of each kind."""
    from benchflow.cli.screen import format_count, make_console, print_error
    from benchflow.cli.terminal import Text, make_line

    kinds: dict[tuple[str, str], tuple[RescoredRollout, Failure]] = {}
    for rollout in rollouts:
        if rollout.outcome == "failed" and rollout.error is not None:
            kinds.setdefault((rollout.error.category, rollout.error.message), (rollout, rollout.error))
    screen = make_console(stderr=True)
    for rollout, failure in list(kinds.values())[:MAX_ERRORS]:
        screen.print(make_line((_format_label(rollout), "bold")))
        print_error(failure)
    if len(kinds) > MAX_ERRORS:
        screen.print(Text(f"and {format_count(len(kinds) - MAX_ERRORS, 'other error')}: see each result.json", "dim"))


def _show_totals(found: Rescoring, screen: Screen) -> None:
    """Print `12 rollouts: 9 unchanged · 3 changed · mean reward 0.75 → 0.8 n=12`, calls of judges, and the file.

    Each agent has its own mean.
    """
    from benchflow.cli.screen import format_count, format_dollars, format_reward, show_place
    from benchflow.cli.terminal import Text

    parts: list[StyledText] = []
    for outcome, (_, style) in _SIGNS.items():
        number = getattr(found.counts, outcome)
        if number:
            parts.append(Text(f"{number} {outcome}", style))
    several = len({mean.agent for mean in found.means}) > 1
    for mean in found.means:
        name = "mean V(s)" if mean.reward_kind == "value" else "mean reward"
        whose = f"{mean.agent}: " if several else ""
        change = f"{format_reward(mean.before)} → {format_reward(mean.after)} n={mean.n}"
        parts.append(Text.assemble(f"{whose}{name} ", (change, "bold")))
    asked = [rollout.judge for rollout in found.rollouts if rollout.judge is not None]
    if asked:
        calls, recorded = sum(use.asked for use in asked), sum(use.recorded for use in asked)
        cost = [use.cost_usd for use in asked if use.cost_usd is not None]
        price = f", {format_dollars(sum(cost))}" if cost else ""
        parts.append(Text(f"judges: {calls} asked{price}, {recorded} recorded"))
    head = Text.assemble((format_count(len(found.rollouts), "rollout"), "bold"), ":  ")
    screen.print(head.append_text(Text(" · ").join(parts)))
    show_place("scores", str(Path(found.directory) / "rescored" / f"{found.name}.json"), screen)
