"""Run the solutions of `benchmarks/system-work` as an agent that is not trusted, and print what their rewards became.

    python tools/honest_table.py prepare DIRECTORY [--unhardened]   write a copy of the package for such an agent
    python tools/honest_table.py run DIRECTORY [SUBMIT OPTION ...]  write it, submit it, print the findings
    python tools/honest_table.py findings JOB_DIRECTORY             print task, kind, place, reward, findings of a job
    python tools/honest_table.py rewards LABEL=JOB_DIRECTORY ...    print the rewards of several jobs side by side

An engine trusts an oracle in part: its processes stay, and programs are not compared. In the copy each solution is
`/attack.sh` of the image as well, which the agents of `benchmarks/attacks` carry out: everything that the hardening
reports about it is reported about honest work. `--unhardened` lifts all of the hardening, to see that a task is sound.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchflow.contracts.verifier import HardeningConfig

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "benchmarks" / "system-work"
AGENTS = ROOT / "benchmarks" / "attacks" / "agents"

MAX_PATHS = 4
"""Paths that the table names for one item of the hardening; the number of the others follows."""

LIFTED = "".join(f"{item} = false\n" for item in HardeningConfig.model_fields)


def metadata_of(package: Path = PACKAGE) -> dict[str, dict[str, Any]]:
    """Return the metadata of all tasks, by their names."""
    files = sorted((package / "tasks").glob("*/task.toml"))
    return {file.parent.name: tomllib.loads(file.read_text())["metadata"] for file in files}


def prepare(directory: Path, *, unhardened: bool = False) -> Path:
    """Write a copy of the package in which every solution is also `/attack.sh` of the image. Returns its directory."""
    copy = directory / ("unhardened" if unhardened else "untrusted")
    if copy.exists():
        raise SystemExit(f"{copy} exists; remove it, or name another directory")
    shutil.copytree(PACKAGE, copy)
    for task in sorted((copy / "tasks").iterdir()):
        shutil.copy(task / "solution" / "solve.sh", task / "environment" / "attack.sh")
        with (task / "environment" / "Dockerfile").open("a") as build:
            build.write("COPY attack.sh /attack.sh\n")
        if unhardened:
            with (task / "task.toml").open("a") as table:
                table.write(f"\n[verifier.hardening]\n{LIFTED}")
    return copy


def results_of(job: Path) -> Iterator[dict[str, Any]]:
    """Yield the results of a job, by the names of their tasks."""
    results = [json.loads(file.read_text()) for file in job.glob("*/result.json")]
    yield from sorted(results, key=lambda result: str(result["task_name"]))


def reward_of(result: dict[str, Any]) -> str:
    """Return the reward as the table has it: `error` where nothing was measured."""
    rewards = result["rewards"] or {}
    return str(rewards.get("reward", "error"))


def place_of(verify: dict[str, Any]) -> tuple[str, str]:
    """Return where the verifier ran, and why there, if the result says so."""
    metadata = verify.get("metadata", {})
    reasons = [str(value) for name, value in metadata.items() if name.startswith("verified_in_")]
    return str(metadata.get("verified_in", "shared")), "; ".join(reasons)


def findings_of(verify: dict[str, Any]) -> str:
    """Return what the hardening found, by item and action."""
    report = verify.get("metadata", {}).get("hardening", {})
    grouped: dict[str, list[str]] = {}
    for finding in report.get("findings", []):
        place = finding.get("path") or finding.get("detail", "")
        grouped.setdefault(f"{finding['item']}: {finding['action']}", []).append(place)
    parts = []
    for what, paths in grouped.items():
        more = len(paths) - MAX_PATHS
        parts.append(f"{what} {', '.join(paths[:MAX_PATHS])}" + (f" and {more} more" if more > 0 else ""))
    if report.get("left_out"):
        parts.append(f"{report['left_out']} not listed")
    return "; ".join(parts)


def line(cells: Iterable[str]) -> str:
    """Return a line of a Markdown table."""
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def print_findings(job: Path) -> None:
    """Print a line for each rollout of a job."""
    known = metadata_of()
    head = ("task", "kind", "verified in", "why", "reward", "findings")
    print(line(head), line("---" for _ in head), sep="\n")
    for result in results_of(job):
        name = result["task_name"]
        steps = [step["verify"] for step in result["steps"] if step.get("verify")]
        place, reason = place_of(steps[-1]) if steps else ("", "")
        problem = result["verifier_error"] or result["error"]
        found = "; ".join(text for step in steps if (text := findings_of(step)))
        told = f"{message_of(problem)} {found}".strip() if problem else found
        print(line((f"`{name}`", known.get(name, {}).get("kind", ""), place, reason, reward_of(result), told)))


def message_of(problem: Any) -> str:
    """Return the first line of an error."""
    text = str(problem.get("message", problem) if isinstance(problem, dict) else problem)
    return text.strip().splitlines()[0]


def print_rewards(jobs: Sequence[tuple[str, Path]]) -> None:
    """Print the rewards of jobs, a column for each label; of two jobs of one label the later one counts."""
    rewards: dict[str, dict[str, str]] = {}
    for label, job in jobs:
        column = rewards.setdefault(label, {})
        column.update((result["task_name"], reward_of(result)) for result in results_of(job))
    head = ("task", "kind", *rewards)
    print(line(head), line("---" for _ in head), sep="\n")
    for name, metadata in metadata_of().items():
        print(line((f"`{name}`", metadata["kind"], *(column.get(name, "") for column in rewards.values()))))


def run(directory: Path, options: Sequence[str], *, unhardened: bool = False) -> int:
    """Submit the copy, with options of `bench submit`, and print the findings. Returns the exit status."""
    copy = prepare(directory, unhardened=unhardened)
    argv = [sys.executable, "-m", "benchflow.cli", "submit", str(copy), "--agent", "attacker", *options]
    placed = ["--jobs-dir", str(directory), "--job-name", f"{copy.name}-job"]
    environment = {**os.environ, "BENCHFLOW_AGENTS_DIR": str(AGENTS)}
    # Rewards below 1.0 are no failure of the command; results that are not there are.
    subprocess.run([*argv, *placed], cwd=ROOT, env=environment, stdout=sys.stderr, check=False)
    job = directory / f"{copy.name}-job"
    if not (job / "results.jsonl").is_file():
        return 1
    print_findings(job)
    return 0


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("prepare", "run"):
        command = commands.add_parser(name)
        command.add_argument("directory", type=Path)
        command.add_argument("--unhardened", action="store_true")
    commands.add_parser("findings").add_argument("job", type=Path)
    commands.add_parser("rewards").add_argument("jobs", nargs="+", metavar="LABEL=JOB_DIRECTORY")
    given, options = parser.parse_known_args(arguments)
    if options and given.command != "run":
        parser.error(f"{given.command} takes no {options[0]}")
    if given.command == "prepare":
        print(prepare(given.directory, unhardened=given.unhardened))
    elif given.command == "run":
        return run(given.directory.absolute(), options, unhardened=given.unhardened)
    elif given.command == "findings":
        print_findings(given.job)
    else:
        print_rewards([(label, Path(job)) for label, _, job in (each.partition("=") for each in given.jobs)])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
