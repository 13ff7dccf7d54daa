"""The ways out of the command line: by the sanitising console, and by nothing else."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.paths import ROOT

CLI = ROOT / "benchflow" / "cli"
MODULES = sorted(CLI.rglob("*.py"))

STREAMS = {"screen.py", "terminal.py", "command.py", "__main__.py"}
"""Modules that may name a stream: JSON, notes and tracebacks; consoles; what is left open when a reader has gone."""

PLAIN_PARTS = {
    *("rich.box", "rich.cells", "rich.console.Group", "rich.console.RenderableType", "rich.padding.Padding"),
    *("rich.progress", "rich.progress_bar.ProgressBar", "rich.spinner.Spinner"),
}
"""Parts of rich that read no markup and write nothing, or need `markup=False` for that, which is looked for, too."""

WRITERS = {"print", "echo", "secho", "print_exc", "print_exception", "print_tb", "from_markup", "from_ansi", "pprint"}
STREAM_NAMES = {"stdout", "stderr", "__stdout__", "__stderr__"}
WITH_MARKUP = {"TextColumn", "TimeRemainingColumn", "SpinnerColumn"}


def wrong_ways(source: str, module: str) -> Iterator[str]:
    """Yield the places of a module at which something could be written unsanitised, or read as markup."""
    tree = ast.parse(source)
    for_types = {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        found = ""
        if isinstance(node, (ast.Import, ast.ImportFrom)) and node not in for_types and module != "terminal.py":
            names = [(alias.name, alias.asname) for alias in node.names]
            full = [f"{node.module}.{name}" if isinstance(node, ast.ImportFrom) else name for name, _ in names]
            allowed = [
                name.split(".")[0] != "rich"
                or name in PLAIN_PARTS
                or name.rpartition(".")[0] in PLAIN_PARTS
                # Under another name, to tell what rich gives from what the screen may be given.
                or (name, alias) in {("rich.text.Text", "StyledText"), ("rich.table.Table", None)}
                for name, (_, alias) in zip(full, names, strict=True)
            ]
            found = "" if all(allowed) else f"imports {', '.join(full)}"
        elif isinstance(node, ast.Call):
            function = node.func
            name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
            is_method = isinstance(function, ast.Attribute)
            if (
                (name in WRITERS and not (name == "print" and is_method))
                or name in ("StyledText", "Table")
                or (isinstance(function, ast.Attribute) and _is(function, "os", "write"))
            ):
                found = f"calls {name}"
            elif name in WITH_MARKUP and not any(
                keyword.arg == "markup" and ast.unparse(keyword.value) == "False" for keyword in node.keywords
            ):
                found = f"calls {name} with markup"
            elif (
                any(keyword.arg == "markup" for keyword in node.keywords)
                and name != "TextColumn"
                and module != "terminal.py"
            ):
                found = "asks for markup"
        elif isinstance(node, ast.Attribute) and _is(node, "sys", *STREAM_NAMES) and module not in STREAMS:
            found = f"names sys.{node.attr}"
        if found:
            yield f"{module}:{node.lineno} {found}"


def _is(node: ast.Attribute, module: str, *names: str) -> bool:
    return isinstance(node.value, ast.Name) and node.value.id == module and node.attr in names


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.stem)
def test_a_command_writes_through_the_sanitising_console_only(path: Path) -> None:
    assert list(wrong_ways(path.read_text(), path.name)) == []


@pytest.mark.parametrize(
    "source",
    [
        "print(x)",
        "typer.echo(x)",
        "import sys\nsys.stdout.write(x)",
        "import sys\nprint_to(sys.stderr)",
        "import os\nos.write(1, x)",
        "from rich.console import Console",
        "from rich.text import Text",
        "from rich.markup import render",
        "from rich import print",
        "import rich",
        "Text.from_markup(x)",
        "StyledText(x)",
        "from rich.table import Table\nTable(x)",
        "TextColumn('{task.description}')",
        "screen.print(x, markup=True)",
        "import traceback\ntraceback.print_exc()",
    ],
)
def test_another_way_is_noticed(source: str) -> None:
    assert list(wrong_ways(source, "job.py"))


def test_json_has_one_way_out() -> None:
    dumped = [path.name for path in MODULES if "ensure_ascii=False" in path.read_text()]
    # There a value is made one row of text, which is sanitised as such.
    assert dumped == ["plain.py"]
