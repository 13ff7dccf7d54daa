"""Write the table of attacks and defences into the docs: `attack_table.py [--check] [LABEL=JOB_DIRECTORY ...]`.

What is said of an attack comes from its task's own metadata. Each LABEL is a column of rewards, out of the results of a
job that ran the package; without one the columns that the table has are kept. `--check` writes nothing: exit status 1
says that the table does not tell what the metadata tells.
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

Rows = dict[str, list[str]]


def told() -> Rows:
    """What the metadata says of each attack, by its name, in the order of families."""
    rows: list[list[str]] = []
    for file in TASKS.glob("*/task.toml"):
        metadata: dict[str, Any] = tomllib.loads(file.read_text())["metadata"]
        if metadata["family"] == "honest":
            continue
        stopped = " or ".join(f"`{item}`" for item in metadata["stopped_by"]) or "**nothing**"
        root = "yes" if metadata["needs_root"] else ""
        rows.append([f"`{file.parent.name}`", metadata["family"], metadata["tries"], root, stopped])
    return {row[0]: row for row in sorted(rows, key=lambda row: (row[1], row[0]))}


def read(text: str) -> tuple[list[str], Rows]:
    """The columns of rewards that the document's table has, and its rows by attack."""
    lines = [line for line in text.split(BEGIN)[1].split(END)[0].splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return (cells[0][len(TOLD) :], {row[0]: row for row in cells[2:]}) if cells else ([], {})


def rewards(directory: Path) -> dict[str, str]:
    """A reward for each attack of a job: its own spelling, `error` where nothing could be measured."""
    lines = (directory / "results.jsonl").read_text().splitlines()
    results = [json.loads(line) for line in lines]
    return {f"`{one['task_name']}`": str((one["rewards"] or {}).get("reward", "error")) for one in results}


def write(text: str, labels: list[str], rows: Rows) -> str:
    head = [*TOLD, *labels]
    lines = [head, ["---"] * len(head), *rows.values()]
    table = "\n".join(f"|{'|'.join(f' {cell} ' if cell else ' ' for cell in cells)}|" for cells in lines)
    return f"{text.split(BEGIN)[0]}{BEGIN}\n{table}\n{END}{text.split(END)[1]}"


def main(*arguments: str) -> int:
    text, rows = DOCUMENT.read_text(), told()
    labels, present = read(text)
    if "--check" in arguments:
        return 0 if list(rows.values()) == [row[: len(TOLD)] for row in present.values()] else 1
    if arguments:
        labels = [argument.partition("=")[0] for argument in arguments]
        columns = [rewards(Path(argument.partition("=")[2])) for argument in arguments]
        measured = {name: [column.get(name, "") for column in columns] for name in rows}
    else:
        measured = {name: present[name][len(TOLD) :] if name in present else [""] * len(labels) for name in rows}
    DOCUMENT.write_text(write(text, labels, {name: [*row, *measured[name]] for name, row in rows.items()}))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
