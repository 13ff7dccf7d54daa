"""Run the package of attacks in every mode, and write what each attack earned into the tables of the docs.

    attack_matrix.py [--agent NAMES] [--sandbox NAMES] [--verify-in PLACES] [--include GLOB ...] [-n N] [--jobs-dir DIR]
    attack_matrix.py --engine COMMAND [--label LABEL] [--agent NAMES] [--jobs-dir DIR]
    attack_matrix.py LABEL=JOB_DIRECTORY ...
    attack_matrix.py --describe | --check

The first form submits a job for each agent, sandbox and place of the verifier; each is a column. The second runs the
command line of another engine, and the third reads jobs that have run. What a job did not run stays as it was, and so
do other columns. `--print` prints the tables and writes nothing. `--describe` writes what the metadata of the tasks
says and measures nothing, and `--check` exits with 1 if the tables say anything else.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "benchmarks" / "attacks"
DOCUMENT = ROOT / "docs" / "hardening.md"
BEGIN, END = "<!-- attacks: begin -->", "<!-- attacks: end -->"

DESCRIBED = ["attack", "family", "what it does", "root", "stopped by"]
"""The columns that come from the metadata; those of rewards are behind them."""

NOTHING, ROOM, STOPPED = "What nothing stops", "What only the clean room stops", "What is stopped by default"

UNPRIVILEGED, AS_ROOT = "attacker", "attacker-root"
SANDBOXES, PLACES = ("docker", "local"), ("shared", "separate")
FINDING = "✓"
"""Behind a reward: the engine reported something that the attack left."""

LEGEND = f"""Columns that begin with `root` are of an agent that is always root, and are left out for attacks that any
agent carries out as root. `{FINDING}`: the engine reported something that the attack had left. An empty cell was not
measured.
"""

NOT_SUBMITTED = 2
"""Exit status of `bench submit` for a bad request; 1 says that rollouts ended with errors."""

Rows = dict[str, list[str]]
Column = dict[str, str]


# --- tables ----------------------------------------------------------------------------------------------


def attacks() -> dict[str, dict[str, Any]]:
    """Return the metadata of each attack by its name."""
    files = {file.parent.name: file for file in sorted((PACKAGE / "tasks").glob("*/task.toml"))}
    found = {name: dict(tomllib.loads(file.read_text())["metadata"]) for name, file in files.items()}
    return {name: metadata for name, metadata in found.items() if metadata["family"] != "honest"}


def described() -> Rows:
    """Return the described part of each attack's row by its name, in the order of families."""
    rows: list[list[str]] = []
    for name, metadata in attacks().items():
        stopped = " or ".join(f"`{item}`" for item in metadata["stopped_by"])
        root = "yes" if metadata["needs_root"] else ""
        rows.append([f"`{name}`", metadata["family"], metadata["tries"], root, stopped])
    return {row[0]: row for row in sorted(rows, key=lambda row: (row[1], row[0]))}


def group_of(row: list[str]) -> str:
    """Return the heading of the table in which an attack stands."""
    stopped = row[DESCRIBED.index("stopped by")]
    return {"": NOTHING, "`clean-room`": ROOM}.get(stopped, STOPPED)


def read(text: str) -> tuple[list[str], Rows]:
    """Return the labels of the document's columns of rewards, and its rows by attack."""
    lines = [line for line in text.split(BEGIN)[1].split(END)[0].splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]
    labels = cells[0][len(DESCRIBED) :] if cells else []
    return labels, {row[0]: row for row in cells if row[0].startswith("`")}


def columns_of(text: str) -> dict[str, Column]:
    """Return the document's cells of rewards by column and attack."""
    labels, rows = read(text)
    return {label: {name: row[len(DESCRIBED) + at] for name, row in rows.items()} for at, label in enumerate(labels)}


def tables(columns: dict[str, Column], rows: Rows) -> str:
    """Return the tables, those of modes in the order of modes and then all others."""
    known = [label_of(*mode) for mode in all_modes()]
    labels = sorted(columns, key=lambda label: known.index(label) if label in known else len(known))
    parts: list[str] = []
    for group in (NOTHING, ROOM, STOPPED):
        chosen = [row for row in rows.values() if group_of(row) == group]
        head = [*DESCRIBED, *labels]
        filled = [[*row, *(columns[label].get(row[0], "") for label in labels)] for row in chosen]
        parts += [f"### {group}: {len(chosen)}", ""]
        lines = (head, ["---"] * len(head), *filled)
        parts += [f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in cells)}|" for cells in lines]
        parts.append("")
    return "\n".join(parts[:-1])


def write(text: str, columns: dict[str, Column], rows: Rows) -> str:
    """Return the document with these tables."""
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    return f"{before}{BEGIN}\n{LEGEND}\n{tables(columns, rows)}\n{END}{after}"


# --- results ---------------------------------------------------------------------------------------------


def read_job(directory: Path) -> Column:
    """Return the cells of a job of this engine."""
    results = [json.loads(file.read_text()) for file in sorted(directory.glob("*/result.json"))]
    for one in results:
        if one["error"]:
            print(f"{one['rollout_name']}: the rollout failed: {one['error']['message']}", file=sys.stderr)
    return {f"`{one['task_name']}`": _cell(one) for one in results}


def _cell(result: dict[str, Any]) -> str:
    """Return a reward, `error` where nothing was measured, and whether there was a finding."""
    reward = str((result["rewards"] or {}).get("reward", "error"))
    reports = [((step.get("verify") or {}).get("metadata") or {}).get("hardening") or {} for step in result["steps"]]
    return f"{reward} {FINDING}" if any(report.get("findings") for report in reports) else reward


def read_rewards(directory: Path) -> Column:
    """Return the cells of what another engine left: a `results.jsonl`, or reward files below directories of tasks.

    A line of `results.jsonl` has `task_name` or `task`, and `reward` or `rewards.reward`. The directory of a task has
    its name, and perhaps `__` and more behind it, and `reward.json` or `reward.txt` at any depth.
    """
    names = attacks()
    listings = sorted(directory.rglob("results.jsonl"))
    if listings:
        # What an engine says of a task counts before the file that a verifier, or an attack, has left.
        lines = [json.loads(line) for listing in listings for line in listing.read_text().splitlines()]
        return {f"`{_task(line)}`": _number(line) for line in lines if _task(line) in names}
    found: Column = {}
    for path in sorted(directory.rglob("*")):
        parts = [part.split("__")[0] for part in path.relative_to(directory).parts]
        task = next((part for part in parts if part in names), None)
        if task is not None:
            found.setdefault(f"`{task}`", "error")
            # Of both files reward.json counts; it comes first.
            if path.name in ("reward.json", "reward.txt") and found[f"`{task}`"] == "error":
                found[f"`{task}`"] = _number(json.loads(path.read_text()))
    return found


def _task(line: dict[str, Any]) -> str:
    return str(line.get("task_name") or line.get("task") or "").rpartition("/")[2]


def _number(result: Any) -> str:
    """Return the reward of a number, or of an object that holds one; `error` where there is none."""
    if isinstance(result, dict):
        held = result.get("rewards")
        result = held.get("reward") if isinstance(held, dict) else result.get("reward")
    return "error" if result is None else str(float(result))


# --- runs ------------------------------------------------------------------------------------------------

Mode = tuple[str, str, str]
"""A sandbox, a place of the verifier, and an agent."""


def all_modes() -> list[Mode]:
    """Return the modes in the order of their columns."""
    return [(sandbox, place, agent) for agent in (UNPRIVILEGED, AS_ROOT) for sandbox in SANDBOXES for place in PLACES]


def label_of(sandbox: str, place: str, agent: str) -> str:
    """Return the label of a mode's column."""
    who = {UNPRIVILEGED: "", AS_ROOT: "root, "}.get(agent, f"{agent}, ")
    return f"{who}{sandbox}{', clean room' if place == 'separate' else ''}"


def submit(mode: Mode, options: argparse.Namespace) -> Path:
    """Run the package in a mode, and return the directory of the job. One of this name is attached to.

    `attacker` is root where an attack needs it, so that `attacker-root` is left the others.
    """
    sandbox, place, agent = mode
    name = f"{sandbox}-{place}-{agent}"
    argv = [sys.executable, "-m", "benchflow.cli", "submit", str(PACKAGE), "--agent", agent, "--sandbox", sandbox]
    argv += ["--verify-in", place, "--jobs-dir", str(options.jobs_dir), "--job-name", name, "--yes"]
    argv += ["--concurrency", str(options.concurrency), "--stop-after-errors", "0"]
    argv += [word for pattern in options.include for word in ("--include", pattern)]
    if agent == AS_ROOT:
        needy = [task for task, metadata in attacks().items() if metadata["needs_root"]]
        argv += [word for task in needy for word in ("--exclude", task)]
    env = {**os.environ, "BENCHFLOW_AGENTS_DIR": str(PACKAGE / "agents")}
    # What it prints is progress; the tables alone go to stdout.
    status = subprocess.run(argv, env=env, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=sys.stderr).returncode
    if status >= NOT_SUBMITTED:
        raise SystemExit(f"the job {name} did not run: bench submit ended with exit status {status}")
    return Path(options.jobs_dir) / name


def run_engine(agent: str, options: argparse.Namespace) -> Path:
    """Run another engine's command line, and return the directory that it was to fill."""
    out = Path(options.jobs_dir) / agent
    out.mkdir(parents=True, exist_ok=True)
    places = {"tasks": str(PACKAGE / "tasks"), "agent": agent, "out": str(out)}
    argv = [word.format(**places) for word in shlex.split(options.engine)]
    status = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=sys.stderr).returncode
    print(f"{argv[0]} ended with exit status {status}", file=sys.stderr)
    return out


def measure(options: argparse.Namespace) -> Iterator[tuple[str, Column]]:
    """Yield columns with their labels, each as soon as it is there."""
    if options.jobs:
        for job in options.jobs:
            label, _, directory = job.partition("=")
            yield label, read_job(Path(directory))
    elif options.engine:
        label = options.label or Path(shlex.split(options.engine)[0]).name
        for agent in options.agent:
            who = {UNPRIVILEGED: "", AS_ROOT: "root, "}.get(agent, f"{agent}, ")
            column = read_rewards(run_engine(agent, options))
            if not column:
                raise SystemExit(f"{options.engine}: no results.jsonl and no reward files of attacks are in {{out}}")
            yield f"{who}{label}", column
    else:
        for sandbox in options.sandbox:
            for place in options.verify_in:
                for agent in options.agent:
                    mode = (sandbox, place, agent)
                    yield label_of(*mode), read_job(submit(mode, options))


def _names(text: str) -> list[str]:
    return text.split(",")


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("jobs", nargs="*", metavar="LABEL=JOB_DIRECTORY", help="a column, and a job of this engine that has run")
    add("--agent", type=_names, default=[UNPRIVILEGED, AS_ROOT], metavar="NAMES", help="with commas between them")
    add("--sandbox", type=_names, default=list(SANDBOXES), metavar="NAMES")
    add("--verify-in", type=_names, default=list(PLACES), metavar="PLACES", help="shared, separate")
    add("--include", action="append", default=[], metavar="GLOB", help="only attacks of this name; repeatable")
    add("-n", "--concurrency", type=int, default=4, metavar="N")
    started = time.strftime("%Y%m%d-%H%M%S")
    add("--jobs-dir", type=Path, default=Path(f"jobs/attacks-{started}"), metavar="DIR", help="a job in it goes on")
    add("--engine", metavar="COMMAND", help="of another engine, with {tasks}, {agent} and {out}")
    add("--label", metavar="LABEL", help="of the other engine's column; the name of its program by default")
    add("--print", action="store_true", help="print the tables, and leave the docs as they are")
    add("--describe", action="store_true", help="write what the metadata says, and measure nothing")
    add("--check", action="store_true", help="compare the docs with the metadata, and measure nothing")
    options = parser.parse_args(arguments)
    options.jobs_dir = options.jobs_dir.resolve()
    if wrong := [job for job in options.jobs if "=" not in job]:
        parser.error(f"{wrong[0]}: write LABEL=JOB_DIRECTORY")
    return options


def main(*arguments: str) -> int:
    options, text, rows = parse(arguments), DOCUMENT.read_text(), described()
    columns = columns_of(text)
    if options.check:
        return 0 if write(text, columns, rows) == text else 1
    if options.describe:
        DOCUMENT.write_text(write(text, columns, rows))
        return 0
    for label, column in measure(options):
        columns.setdefault(label, {}).update(column)
        if not options.print:
            # After each column: what was measured stays, even if the next one is interrupted.
            DOCUMENT.write_text(write(text, columns, rows))
    if options.print:
        print(tables(columns, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
