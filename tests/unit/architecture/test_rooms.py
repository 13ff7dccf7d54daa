"""The shape of the package: which way the arrows point, and that every public name has somebody who needs it."""

from __future__ import annotations

import ast
import functools
import itertools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from support.paths import ROOT

PACKAGE = ROOT / "benchflow"
MODULES = sorted(path for path in PACKAGE.rglob("*.py"))

ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "contracts": {"errors"},
    "confined": {"errors"},
    "archive_reader": {"confined"},
    "host_files": {"contracts"},
    "process_identity": set(),
    "addresses": set(),
    "paths": set(),
    "user_files": {"confined", "contracts", "errors"},
    "stored_files": {"confined", "errors"},
    "log": {"log_files", "sanitise"},
    "log_files": {"host_files"},
    "stack_processes": {"log_files"},
    "rounds": {"errors"},
    "idle": {"paths", "stack", "temporal"},
    "provenance": {
        *("confined", "contracts", "errors", "host", "host_files", "paths", "results.summary", "secrets"),
        *("stored_files",),
    },
    "store": {"contracts", "host_files", "errors", "paths"},
    "host": {"contracts", "errors", "host_files", "paths"},
    "references": set(),
    "user_code": {"errors"},
    "secrets": {"confined", "contracts", "errors", "host_files", "paths", "references"},
    "tasks": {"archive_reader", "confined", "contracts", "errors", "host_files", "references", "user_files"},
    "sanitise": set(),
    "trajectories": {"contracts", "errors", "host_files", "paths", "sanitise", "stored_files"},
    "branching": {"contracts", "errors", "trajectories", "user_files"},
    # The gateway and the scripted model read the same requests, and neither may know the other.
    "llm_apis": {"contracts"},
    "gateway": {
        *("contracts", "errors", "host_files", "llm_apis", "log", "log_files", "paths", "secrets"),
        *("stack_processes", "trajectories"),
    },
    "planes": {
        *("addresses", "archive_reader", "confined", "contracts", "errors", "host_files", "paths"),
        *("process_identity", "stored_files", "user_code", "user_files"),
    },
    "checkpoints": {"contracts", "errors"},
    "testing": {"contracts", "errors", "llm_apis", "planes", "store", "user_files"},
    "results": {"contracts", "errors", "host_files", "paths", "stored_files", "trajectories"},
    "workflows": {
        *("branching.policies", "contracts", "errors", "sanitise", "trajectories.growth", "trajectories.state_values"),
    },
    "hosting": {
        *("archive_reader", "branching", "checkpoints", "confined", "contracts", "errors", "gateway", "host"),
        *("host_files", "paths", "planes", "results", "secrets", "store", "stored_files", "tasks", "trajectories"),
        *("user_code",),
    },
    "activities": {
        *("branching", "contracts", "errors", "gateway", "host_files", "hosting", "paths", "planes"),
        *("process_identity", "results", "rounds", "secrets", "store", "stored_files", "tasks", "trajectories"),
        *("workflow_executions",),
    },
    "workflow_executions": {"contracts", "errors"},
    "messages": {"contracts", "errors", "store"},
    "temporal": {"contracts", "errors", "messages", "paths", "stack", "workflows.activity_options"},
    "enclosure": set(),
    "door": {"log", "paths", "stack"},
    "temporal_server": {
        *("contracts", "enclosure", "errors", "log_files", "paths", "stack_processes", "stack", "temporal"),
        *("workflows.activity_options",),
    },
    "stack": {"contracts", "errors", "host", "host_files", "log_files", "paths", "process_identity"},
    "supervisor": {
        *("errors", "gateway", "host", "host_files", "idle", "log", "paths", "process_identity", "rounds"),
        *("stack", "stack_processes", "temporal_server"),
    },
    "worker": {
        *("activities", "contracts", "errors", "gateway", "host", "log", "paths", "planes", "rounds", "stack", "store"),
        *("temporal", "workflows"),
    },
    "jobs": {
        *("addresses", "branching", "contracts", "errors", "host", "host_files", "hosting", "paths", "planes"),
        *("provenance", "results", "sanitise", "secrets", "stack", "store", "stored_files", "tasks", "temporal"),
        *("trajectories", "workflow_executions", "workflows"),
    },
    "rescoring": {
        *("contracts", "errors", "host", "host_files", "hosting", "jobs", "paths", "planes", "provenance"),
        *("results", "secrets", "store", "tasks", "temporal"),
    },
    "rubric": {"contracts", "errors", "planes", "rescoring", "tasks", "trajectories"},
    "rollout": {"config_file", "contracts", "errors", "jobs", "paths", "trajectories"},
    "runtime": {"contracts", "errors", "rollout"},
    "config_file": {"contracts", "errors", "user_files"},
    "_utils": {"config_file"},
    "__init__": {
        "contracts",
        "errors",
        "planes.agent",
        "planes.reward",
        "planes.sandbox.driven.protocol",
        "rollout",
        "rubric",
        "runtime",
        "trajectories.stored",
    },
}
"""Which room may use which. A room that is not named here may not exist; `cli` may use all, and nothing uses it."""


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def imports(path: Path) -> tuple[str, ...]:
    """Return the modules that a file imports, wherever in it."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert node.level == 0, f"{path}: imports are absolute"
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def wrong_arrows(path: Path) -> Iterator[str]:
    """Yield the imports of a module that its room may not have."""
    room = room_of(path)
    if room == "cli":
        return
    allowed = ALLOWED[room] | {room}
    for name in imports(path):
        if not name.startswith("benchflow."):
            continue
        target = name.removeprefix("benchflow.")
        first = target.split(".")[0]
        if not (PACKAGE / first).exists() and not (PACKAGE / f"{first}.py").exists():
            continue  # a name of `benchflow` itself
        if first not in allowed and not any(target == a or target.startswith(f"{a}.") for a in allowed):
            yield f"{path.relative_to(ROOT)} must not use {name}"


def test_arrows_point_one_way() -> None:
    assert [arrow for path in MODULES for arrow in wrong_arrows(path)] == []


NO_TEMPORAL = {"errors", "contracts", "hosting", "planes", "tasks", "trajectories", "branching", "testing", "results"}
NO_IO = {"docker", "socket", "subprocess", "pathlib", "os", "shutil", "requests", "structlog", "time"}


def test_rooms_that_temporal_is_hidden_from_do_not_import_it() -> None:
    packages = {path: {name.split(".")[0] for name in imports(path)} for path in MODULES}
    assert [path for path, names in packages.items() if room_of(path) in NO_TEMPORAL and "temporalio" in names] == []
    assert [path for path, names in packages.items() if room_of(path) == "workflows" and NO_IO & names] == []


def test_each_module_says_what_it_is_for() -> None:
    assert [path for path in MODULES if not ast.get_docstring(tree(path))] == []


LONG: dict[str, str] = {
    "benchflow/confined.py": "all that opens what a sandbox can name, to be read as a whole",
    "benchflow/errors.py": "one tree",
    "benchflow/gateway/exchange.py": "one call, whose parts share its state, with its agent and without",
    "benchflow/testing/demo_agent.py": "it is copied into sandboxes as one file without dependencies",
}
"""Files of more than 420 lines, and the reason why each is still one thing."""


def bare_fields(path: Path) -> Iterator[str]:
    """Yield the fields of a module's classes that no docstring describes."""
    for owner in ast.walk(tree(path)):
        if isinstance(owner, ast.ClassDef):
            for field, below in itertools.zip_longest(owner.body, owner.body[1:]):
                if isinstance(field, ast.AnnAssign) and not is_docstring(below):
                    yield f"{path.stem}: {owner.name}.{ast.unparse(field.target)}"


def count_lines(path: Path) -> int:
    """Return the lines of a module without the docstrings of fields, and the empty line below each."""
    described = [
        below.end_lineno - field.end_lineno + 1
        for owner in ast.walk(tree(path))
        if isinstance(owner, (ast.Module, ast.ClassDef))
        for field, below in itertools.pairwise(owner.body)
        if isinstance(field, (ast.Assign, ast.AnnAssign)) and is_docstring(below)
    ]
    return len(path.read_text().splitlines()) - sum(described)


def is_docstring(node: ast.stmt | None) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def test_each_field_of_a_contract_has_a_docstring() -> None:
    contracts = [path for path in MODULES if room_of(path) == "contracts"]
    assert [field for path in contracts for field in bare_fields(path)] == []


def test_no_file_has_grown_out_of_its_reason() -> None:
    long = {str(path.relative_to(ROOT)) for path in MODULES if count_lines(path) > 420}
    assert long == set(LONG)


def public_names(path: Path) -> Iterator[str]:
    for node in tree(path).body:
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        # A verb of the command line is called by its decorator.
        is_verb = room_of(path) == "cli" and node.decorator_list
        if not node.name.startswith("_") and not is_verb:
            yield node.name


def words(path: Path) -> list[str]:
    return re.findall(r"\w+", path.read_text())


def test_every_public_name_is_called_documented_or_tested() -> None:
    in_modules = Counter(word for path in MODULES for word in words(path))
    others = [path for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    others += [path for path in ROOT.rglob("*.md") if ".venv" not in path.parts]
    in_others = {word for path in (*others, ROOT / "pyproject.toml") for word in words(path)}
    idle = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in MODULES
        for name in public_names(path)
        # Once: where it is defined.
        if in_modules[name] == 1 and name not in in_others
    ]
    assert not idle, "nothing calls, documents or tests: " + ", ".join(idle)
