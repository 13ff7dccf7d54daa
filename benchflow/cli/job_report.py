"""Output of a job: the table of rewards, the totals, the JSON object, and the commands that continue from it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from benchflow.cli import command
from benchflow.cli.figures import format_means, show_agents
from benchflow.cli.mode_display import format_mode, make_mode_document, show_mode
from benchflow.cli.screen import (
    STATUS_SIGNS,
    STATUS_STYLES,
    find_first_line,
    fit,
    format_count,
    format_dollars,
    format_earned,
    format_number,
    format_reward,
    format_seconds,
    make_table,
    print_json,
    show_place,
    split_log,
)
from benchflow.sanitise import sanitise_line, sanitise_log

if TYPE_CHECKING:
    from rich.table import Table

    from benchflow.cli.terminal import Screen, Text
    from benchflow.contracts.config import JobConfig
    from benchflow.contracts.job_modes import JobMode
    from benchflow.contracts.rollout_records import Failure, RolloutResult
    from benchflow.jobs import Engine, Job
    from benchflow.paths import JobPaths
    from benchflow.results.summary import Summary

MAX_ROWS = 60
"""Maximum number of rollouts that are listed. Of a larger job, only those that did not pass or have tampered are."""

MAX_ERRORS = 3
"""Maximum number of errors that are printed in full."""

MAX_ERROR_WIDTH = 100
"""Greatest width of the column of errors."""


def describe(config: JobConfig, tasks: int) -> str:
    """Return a job in short: `9 tasks × oracle × 3 · docker · 4 at a time`, and its branch policy or mode, if any.

    Args:
        config: Configuration of the job.
        tasks: Number of its tasks.
    """
    agents = " + ".join(agent.label for agent in config.agents)
    repeats = f" × {config.repeats}" if config.repeats > 1 else ""
    branch = f" · branch {config.branch.policy.kind}" if config.branch is not None else ""
    if config.mode is not None:
        branch = f" · {format_mode(config.mode)}"
    return (
        f"{format_count(tasks, 'task')} × {agents}{repeats} · {config.sandbox} · {config.concurrency} at a time{branch}"
    )


def finish(job: Job, screen: Screen, as_json: bool) -> int:
    """Print the results of a job that has ended, or that was left, and return the exit status.

    Args:
        job: The job.
        screen: Console for text.
        as_json: Print the JSON object on stdout, too; of the text, only the totals and places.
    """
    from benchflow.cli.terminal import make_line
    from benchflow.results.summary import summarize

    results = job.results()
    summary = summarize(job.name, job.spec.total, results, job.spec)
    if as_json:
        print_json(make_document(list_job_facts(job, state="finished"), summary, results, job.spec.run.mode))
    else:
        show_rows(results, screen)
        show_mode(job.directory, job.spec.run.mode, results, screen)
        show_errors(results, screen)
        if len(summary.agents) > 1:
            show_agents(summary, screen)
    show_totals(summary, screen)
    show_places(job, screen)
    if missing := summary.not_run + summary.not_started + summary.errors.get("model_endpoint", 0):
        again = f"bench job resume {job.name}{format_jobs_dir_option(job.directory)}"
        screen.print(make_line(f"To run the {missing} without a result or a model: ", (again, "bold")))
    return choose_exit_status(summary)


def choose_exit_status(summary: Summary) -> int:
    """Return the exit status of a job: `ALL_SCORED` only if every rollout was run and has a score."""
    unscored = summary.errored + summary.cancelled + summary.not_started + summary.not_run
    return command.SOME_ERRORED if unscored else command.ALL_SCORED


# --- as data -----------------------------------------------------------------------------------------------


def list_job_facts(job: Job, *, state: str) -> dict[str, Any]:
    """Return the facts of a job for the JSON object.

    Args:
        job: The job.
        state: `running` or `finished`.
    """
    return {
        "id": job.id,
        "name": job.name,
        "directory": str(job.directory.root),
        "ui": job.engine.ui_of(job.id),
        "state": state,
        "total": job.spec.total,
        "started": job.started,
        "attached": job.attached,
    }


def make_document(
    job: dict[str, Any], summary: Summary, results: Sequence[RolloutResult], mode: JobMode | None = None
) -> dict[str, Any]:
    """Return the object that `--json` prints: job, summary, rollouts, and the `groups` or `values` of a job's mode.

    Args:
        job: Facts of the job (`list_job_facts`).
        summary: Its summary.
        results: Results of its rollouts.
        mode: Its mode; None for a job without one.
    """
    from benchflow.results.write import make_result_row

    made = {"job": job, "summary": summary.model_dump(mode="json"), "rollouts": [make_result_row(r) for r in results]}
    return made | (make_mode_document(mode, results) if mode is not None else {})


# --- for people --------------------------------------------------------------------------------------------


def show_rows(results: Sequence[RolloutResult], screen: Screen, limit: int = MAX_ROWS) -> None:
    """Print the table of rewards, and the number of rollouts that it leaves out.

    Args:
        results: Results of the rollouts.
        screen: Console to print on.
        limit: Maximum number of rows; beyond it, only rollouts that did not pass or have tampered are listed.
    """
    from benchflow.cli.terminal import Text

    shown = results
    if len(results) > limit:
        shown = [result for result in results if result.status != "passed" or result.n_tampering][:limit]
    if shown:
        screen.print(_make_rows(shown, several=any(result.repeat for result in results), width=screen.width))
    if len(shown) < len(results):
        rest = format_count(len(results) - len(shown), "rollout")
        screen.print(Text(f"{rest} not listed; all of them are in results.jsonl", "dim"))


def _make_rows(results: Sequence[RolloutResult], *, several: bool, width: int) -> Table:
    """Return the table of rewards.

    Args:
        results: Results to list.
        several: Whether tasks are repeated, so that rows have the number of the repeat.
        width: Columns of the console. A narrow table has tampering, or else tokens and costs, or else errors.
    """
    from benchflow.cli.terminal import Text
    from benchflow.results.summary import format_agent_label

    left: dict[str, Any] = {"no_wrap": True}
    right = left | {"justify": "right"}
    is_wide = width >= 80
    has_tampering = any(result.n_tampering for result in results)
    has_figures = is_wide or not has_tampering
    has_tokens = has_figures and any(_sum_tokens(result) is not None for result in results)
    has_cost = has_figures and any(result.cost_usd is not None for result in results)
    # The errors are printed in full below the table.
    has_error = is_wide or not (has_tokens or has_cost or has_tampering)
    rows = make_table(
        *("task", "agent", ("reward", right), ("status", left)),
        *([("tampering", right)] if has_tampering else []),
        ("time", right),
        *([("tokens", right)] if has_tokens else []),
        *([("cost", right)] if has_cost else []),
        *([("error", {"max_width": MAX_ERROR_WIDTH})] if has_error else []),
    )
    for result in results:
        style = STATUS_STYLES[result.status]
        rows.add_row(
            fit(f"{result.task_name} #{result.repeat}" if several else result.task_name),
            fit(format_agent_label(result)),
            Text(format_score(result), f"bold {style}"),
            Text(f"{STATUS_SIGNS[result.status]} {result.status}", style),
            *([Text(str(result.n_tampering), "bold red" if result.n_tampering else "dim")] if has_tampering else []),
            "–"
            if result.status == "not_started"
            else format_seconds((result.finished_at - result.started_at).total_seconds()),
            *([_format_tokens(_sum_tokens(result), result.n_estimated_calls)] if has_tokens else []),
            *([format_dollars(result.cost_usd)] if has_cost else []),
            *([fit(_error_line(result), "dim")] if has_error else []),
        )
    return rows


def format_score(result: RolloutResult) -> str:
    """Return a result's reward: `0.5`, V(s) as `V 0.42 ±0.2 n=4`, or several keys as `style 1, speed 0.5`."""
    from benchflow.contracts.rewards import shown_keys
    from benchflow.results.value_reward import find_value_node

    node = find_value_node(result)
    if result.status == "scored":
        return find_first_line(shown_keys(result.rewards))
    if node is None:
        return format_earned(result.reward, result.reward_kind)
    error = f" ±{format_reward(node.stderr)}" if node.stderr is not None else ""
    return f"V {format_reward(node.value)}{error} n={node.n}"


def _sum_tokens(result: RolloutResult) -> int | None:
    """Return the sum of input and output tokens, as far as they are known; None if neither is."""
    known = [number for number in (result.n_input_tokens, result.n_output_tokens) if number is not None]
    return sum(known) if known else None


def _format_tokens(tokens: int | None, estimated_calls: int) -> str:
    """Return a number of tokens as `4.2k`, or as `~4.2k` if those of some calls are estimated."""
    return f"{'~' if estimated_calls and tokens is not None else ''}{format_number(tokens)}"


def _error_line(result: RolloutResult) -> str:
    failure = result.error or result.verifier_error
    return f"{failure.category}: {find_first_line(failure.message)}" if failure else ""


def show_errors(results: Sequence[RolloutResult], screen: Screen) -> None:
    """Print the first errors in full, one of each kind; why the job stopped; and failed children."""
    from rich.padding import Padding

    from benchflow.cli.terminal import Text, make_line
    from benchflow.results.summary import format_agent_label

    kinds: dict[tuple[str, str], tuple[RolloutResult, Failure]] = {}
    for result in results:
        failure = result.error or result.verifier_error
        if failure is not None and failure.category not in ("cancelled", "not_started"):
            kinds.setdefault((failure.category, failure.message), (result, failure))
    for result, failure in list(kinds.values())[:MAX_ERRORS]:
        where = f" in {failure.phase}" if failure.phase else ""
        screen.print(
            make_line((f"{result.task_name} · {format_agent_label(result)}", "bold"), f": {failure.category}{where}")
        )
        place = ": ".join(sanitise_line(part) for part in (failure.file, failure.key) if part)
        text = Text(sanitise_log(f"{place}: {failure.message}" if place else failure.message))
        if failure.remedy:
            text.append("\nremedy: ", "bold").append(sanitise_log(failure.remedy))
        if failure.log_tail:
            for last in split_log(failure.log_tail)[-10:]:
                text.append(f"\n│ {last}", "dim")
        screen.print(Padding(text, (0, 0, 1, 2), expand=False))
    if len(kinds) > MAX_ERRORS:
        screen.print(Text(f"and {format_count(len(kinds) - MAX_ERRORS, 'other error')}: see each result.json\n", "dim"))
    stop = next((result.error for result in results if result.status == "not_started"), None)
    if stop is not None:
        why = stop.message.partition(":")[0]
        screen.print(make_line(("The job has stopped: ", "bold"), f"{why}."), soft_wrap=True)
    _show_branched(results, screen)


def _show_branched(results: Sequence[RolloutResult], screen: Screen) -> None:
    """Print the failed children, which count in no V(s), of the first rollouts; and the command that draws trees."""
    from benchflow.cli.terminal import Text, make_line
    from benchflow.results.value_reward import find_value_node

    found = [(result, node) for result in results if (node := find_value_node(result)) is not None]
    failed = [(result, node) for result, node in found if node.failed]
    for result, node in failed[:MAX_ERRORS]:
        chain, failure = next(iter(node.failed.items()))
        told = f"of the {node.n + len(node.failed)} children of {node.id}, {len(node.failed)} have no return: "
        first = f"{chain}: {failure.category}: {find_first_line(failure.message)}"
        screen.print(make_line((f"{result.task_name}: ", "bold"), told, (first, "dim")), soft_wrap=True)
    if len(failed) > MAX_ERRORS:
        screen.print(Text(f"and children of {format_count(len(failed) - MAX_ERRORS, 'other rollout')}", "dim"))
    if found:
        show_place("tree", f"bench tree show {shlex.quote(str(found[0][0].directory))}", screen)


def show_totals(summary: Summary, screen: Screen) -> None:
    """Print `9 rollouts: 8 passed · 1 errored · mean reward 0.944 n=8 (95 %: 0.8 … 1.0) · 4.2k tokens · $0.12`.

    A job of several agents has no mean there: it would be one over all of them.
    """
    from benchflow.cli.terminal import Text

    text = Text.assemble((format_count(summary.total, "rollout"), "bold"), ":  ")
    parts = []
    for status in STATUS_STYLES:
        number = getattr(summary, status)
        if number:
            parts.append(Text(f"{number} {status.replace('_', ' ')}", STATUS_STYLES[status]))
    if summary.not_run:
        parts.append(Text(f"{summary.not_run} without a result", "magenta"))
    if summary.run_again:
        parts.append(Text(f"{summary.run_again} run again"))
    parts += [Text(mean, "bold") for mean in format_means(summary)]
    if summary.n_input_tokens is not None:
        tokens = summary.n_input_tokens + (summary.n_output_tokens or 0)
        parts.append(Text(f"{_format_tokens(tokens, summary.n_estimated_calls)} tokens"))
    if summary.cost_usd is not None:
        parts.append(Text(format_dollars(summary.cost_usd)))
    screen.print(text.append_text(Text(" · ").join(parts)))


def show_places(job: Job, screen: Screen) -> None:
    """Print the directory of the results, the Web UI's address, and that the embedded stack keeps running."""
    show_place("results", str(job.directory.root), screen)
    show_ui(job.engine, job.id, screen)
    if job.engine.target.embedded:
        screen.print("The local stack keeps running until it is idle; bench stack stop ends it now.", style="dim")


def show_ui(engine: Engine, job_id: str, screen: Screen) -> None:
    """Print the job's address in the Web UI, and how to log in there.

    The token itself is not printed: the output of a submit is often kept in a log.
    """
    show_place("Web UI", engine.ui_of(job_id), screen)
    if engine.has_login:
        screen.print("The Web UI asks for a token: first open the address that bench stack status prints.", style="dim")


def show_way_back(job: Job, screen: Screen) -> None:
    """Print the commands that watch and cancel a job."""
    from benchflow.cli.terminal import make_line

    option = format_jobs_dir_option(job.directory)
    ways = [("watch", f"bench job watch {job.name}{option}"), ("cancel", f"bench job cancel {job.name}{option}")]
    for what, way in ways:
        screen.print(make_line("  ", (f"{what:7}", "dim"), f" {way}"), soft_wrap=True)


def format_waiting(paths: JobPaths) -> Text:
    """Return a line that says that a job waits for its user's answer, and which command asks for it."""
    from benchflow.cli.terminal import make_line

    watch = f"bench job watch {paths.root.name}{format_jobs_dir_option(paths)}"
    return make_line("The job waits for an answer: ", (watch, "bold"), ", on a terminal, asks. Without one it stops.")


def show_question(message: str, paths: JobPaths, screen: Screen) -> None:
    """Print a job's question to its user, and how to answer it."""
    from benchflow.cli.terminal import make_line

    screen.print(make_line((message, "yellow")), soft_wrap=True)
    screen.print(format_waiting(paths), soft_wrap=True)


def format_jobs_dir_option(paths: JobPaths) -> str:
    """Return ` --jobs-dir DIR` for a job outside of `jobs` in the current directory; else an empty text."""
    from pathlib import Path

    directory = paths.root.parent
    return "" if directory == Path("jobs").resolve() else f" --jobs-dir {shlex.quote(str(directory))}"


def show_detached(job: Job, screen: Screen, as_json: bool) -> None:
    """Print where a job that was left to itself is, and the commands to return to it: the output of `--detach`."""
    from benchflow.results.summary import summarize

    running = bool(job.started or job.attached)
    if as_json:
        summary = summarize(job.name, job.spec.total, job.results(), job.spec)
        print_json(make_document(list_job_facts(job, state="running" if running else "finished"), summary, []))
    if running:
        screen.print("The job runs in the background.")
        show_way_back(job, screen)
    show_places(job, screen)
