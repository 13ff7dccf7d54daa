"""`bench tasks check --run`: the score of each task's oracle in the sandbox where it worked, and in a clean room."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchflow.cli import command

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchflow.cli.terminal import Screen
    from benchflow.contracts.rollout_records import RolloutResult
    from benchflow.jobs import Job


def run_oracles(path: Path, *, context_root: Path | None, sandbox: str | None, screen: Screen) -> Job:
    """Run the oracle of each task, and return the job once it has ended. Each task's fidelity is measured anew.

    Args:
        path: A task, or a directory of tasks.
        context_root: Build context, as for `bench submit`.
        sandbox: Provider; None for the default.
        screen: Console for the progress.
    """
    from benchflow.cli.bench_submit import submit_and_print
    from benchflow.cli.submit_request import make_job_config
    from benchflow.cli.watch import follow
    from benchflow.hosting.fidelity import remove_fidelity
    from benchflow.jobs import plan_job
    from benchflow.tasks import digest_tree, find_ignored_files

    given: dict[str, Any] = {"sandbox": sandbox, "context_root": context_root}
    options = {key: value for key, value in given.items() if value is not None}
    request, _ = make_job_config(paths=[path], agents=["oracle"], try_clean_room=True, **options)
    plan = plan_job(request)
    for root, _ in plan.tasks:
        remove_fidelity(digest_tree(root, exclude=find_ignored_files(root)))
    jobs: list[Job] = []

    async def work() -> None:
        jobs.append(await submit_and_print(plan, (), screen, asks=False))
        await follow(jobs[0], screen)

    command.run(work())
    return jobs[0]


def list_fidelity(results: Sequence[RolloutResult]) -> list[dict[str, Any]]:
    """Return how the scores in a clean room compare, as JSON objects: one per step of each rollout."""
    return [
        {
            "task": result.task_name,
            "step": step.step.name,
            "rewards": step.verify.rewards if step.verify is not None else None,
            "clean_room": step.verify.metadata.get("clean_room") if step.verify is not None else None,
        }
        for result in results
        for step in result.steps
    ]


def show_fidelity(results: Sequence[RolloutResult], screen: Screen) -> None:
    """Print, a line per step, whether a clean room gives the same score as the sandbox in which the oracle worked."""
    from benchflow.cli.terminal import make_line

    for row in list_fidelity(results):
        known, name = row["clean_room"], "/".join(filter(None, (row["task"], row["step"])))
        if known is None or (known["separate"] is None and not known["error"]):
            text, style = "it is not tried whether a clean room scores the same", "dim"
        elif known["is_faithful"]:
            text, style = "a clean room scores the same", "green"
        else:
            there = known["error"] or f"worth {known['separate']}"
            text, style = f"worth {known['shared']}; in a clean room: {there}", "yellow"
        screen.print(make_line((name, "bold"), "  ", (text, style)), soft_wrap=True)
