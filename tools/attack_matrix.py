"""Write the tables of attacks and defences into the docs: `attack_table.py [--check] [LABEL=JOB_DIRECTORY ...]`.

What is said of an attack comes from its task's own metadata, which also says in which of three tables it is. Each LABEL
is a column of rewards, out of the results of a job that ran the package or a part of it: what the job did not run stays
as it was, and so do other columns. `--check` writes nothing: exit status 1 says that the tables do not tell what the
metadata tells.
"""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TASKS = ROOT / "benchmarks" / "attacks" / "tasks"
DOCUMENT = ROOT / "docs" / "hardening.md"
BEGIN, END = "<!-- attacks: begin -->", "<!-- attacks: end -->"

TOLD = ["attack", "family", "what it does", "root", "stopped by"]
"""The columns that come from the metadata; those of rewards are behind them."""

NOTHING, ROOM, STOPPED = "What nothing stops", "What only the clean room stops", "What is stopped by default"

Rows = dict[str, list[str]]


def told() -> Rows:
    """What the metadata says of each attack, by its name, in the order of families."""
    rows: list[list[str]] = []
    for file in TASKS.glob("*/task.toml"):
        metadata: dict[str, Any] = tomllib.loads(file.read_text())["metadata"]
        if metadata["family"] == "honest":
            continue
        stopped = " or ".join(f"`{item}`" for item in metadata["stopped_by"])
        root = "yes" if metadata["needs_root"] else ""
        rows.append([f"`{file.parent.name}`", metadata["family"], metadata["tries"], root, stopped])
    return {row[0]: row for row in sorted(rows, key=lambda row: (row[1], row[0]))}


def group_of(row: list[str]) -> str:
    stopped = row[TOLD.index("stopped by")]
    return {"": NOTHING, "`clean-room`": ROOM}.get(stopped, STOPPED)


def read(text: str) -> tuple[list[str], Rows]:
    """The columns of rewards that the document's tables have, and their rows by attack."""
    lines = [line for line in text.split(BEGIN)[1].split(END)[0].splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line[1:-1].split("|")] for line in lines]
    labels = cells[0][len(TOLD) :] if cells else []
    return labels, {row[0]: row for row in cells if row[0].startswith("`")}


def rewards(directory: Path) -> dict[str, str]:
    """A reward for each attack of a job: its own spelling, `error` where nothing could be measured."""
    lines = (directory / "results.jsonl").read_text().splitlines()
    results = [json.loads(line) for line in lines]
    return {f"`{one['task_name']}`": str((one["rewards"] or {}).get("reward", "error")) for one in results}


def measured(text: str, jobs: dict[str, list[Path]]) -> dict[str, dict[str, str]]:
    """The rewards by column and attack: those of the document, and over them those of jobs."""
    labels, present = read(text)
    columns = {label: {name: row[len(TOLD) + at] for name, row in present.items()} for at, label in enumerate(labels)}
    for label, directories in jobs.items():
        for directory in directories:
            columns.setdefault(label, {}).update(rewards(directory))
    return columns


def write(text: str, columns: dict[str, dict[str, str]], rows: Rows) -> str:
    parts = [BEGIN]
    for group in (NOTHING, ROOM, STOPPED):
        chosen = [row for row in rows.values() if group_of(row) == group]
        head = [*TOLD, *columns]
        filled = [[*row, *(column.get(row[0], "") for column in columns.values())] for row in chosen]
        parts += [f"### {group}: {len(chosen)}", ""]
        lines = (head, ["---"] * len(head), *filled)
        parts += [f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in cells)}|" for cells in lines]
        parts.append("")
    body = "\n".join([*parts[:-1], END])
    return f"{text.split(BEGIN)[0]}{body}{text.split(END)[1]}"


def main(*arguments: str) -> int:
    text, rows = DOCUMENT.read_text(), told()
    if "--check" in arguments:
        columns = measured(text, {})
        return 0 if write(text, columns, rows) == text else 1
    jobs: dict[str, list[Path]] = {}
    for argument in arguments:
        label, _, directory = argument.partition("=")
        jobs.setdefault(label, []).append(Path(directory))
    DOCUMENT.write_text(write(text, measured(text, jobs), rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
