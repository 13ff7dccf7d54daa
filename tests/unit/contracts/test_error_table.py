"""The one table of errors: what is tried again, and by whom. The documentation says the same as the types."""

from __future__ import annotations

import ast
import builtins
import errno
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.paths import ROOT

from benchflow import errors
from benchflow.contracts.failures import failure_of, storage_error, typed_error
from benchflow.contracts.job_retries import RetryConfig
from benchflow.planes.sandbox.local.helper_client import HelperDiedError

KINDS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, errors.BenchFlowError) and kind is not errors.BenchFlowError
]


def row_of(kind: type[errors.BenchFlowError]) -> list[str]:
    again = "as long as there is time" if kind.is_outage else "`max_failures` times" if kind.retryable else "no"
    by_job = "yes" if kind.category in RetryConfig().categories else "no"
    meaning = str(kind.__doc__).splitlines()[0].rstrip(".")
    return [f"`{kind.__name__}`", f"`{kind.category}`", again, by_job, meaning]


def test_the_documentation_lists_every_error_as_it_is() -> None:
    text = (ROOT / "docs" / "errors.md").read_text().partition("## All types")[2]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| `")
    ]
    assert sorted(rows) == sorted(map(row_of, KINDS))


def drawn() -> Iterator[tuple[str, str]]:
    """Yield the pairs of a class and its base, as the docstring of `errors` draws them."""
    groups: dict[int, str] = {}
    depth = -1
    for line in str(errors.__doc__).splitlines():
        found = re.fullmatch(r"( +)(?:(\w+Error): )?((?:\w+Error(?:, |,?$))+)", line)
        if found is None:
            continue
        indent, group, leaves = found.groups()
        if group is not None:
            depth = len(indent) // 4 - 1
            groups[depth] = group
            yield group, groups[depth - 1] if depth else "Exception"
        yield from ((leaf, groups[depth]) for leaf in re.findall(r"\w+", leaves))


def test_the_drawing_of_the_tree_is_the_tree() -> None:
    tree = [(kind.__name__, kind.__bases__[0].__name__) for kind in (errors.BenchFlowError, *KINDS)]
    assert sorted(drawn()) == sorted(tree)


def types_written_out(file: Path) -> Iterator[str]:
    """Yield the types of failures that a file writes as strings, and its other strings that look like such a type."""
    tree = ast.parse(file.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("ApplicationError", "Failure")):
            yield from (str(ast.literal_eval(one.value)) for one in node.keywords if is_type(one))
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and re.fullmatch(r"[A-Z]\w+Error", node.value)
        ):
            yield node.value


def is_type(keyword: ast.keyword) -> bool:
    return keyword.arg == "type" and isinstance(keyword.value, ast.Constant)


def test_no_type_of_an_error_is_written_as_a_string() -> None:
    """A type comes from its class, so that a class that is renamed or gone leaves no string behind that means it."""
    package = ROOT / "benchflow"
    written = {
        (str(file.relative_to(package)), name)
        for file in package.rglob("*.py")
        for name in types_written_out(file)
        if not hasattr(builtins, name)
    }
    # The names that `benchflow` exports, and a class that the scripted model exports for its users.
    assert written == {
        ("__init__.py", "ACPError"),
        ("__init__.py", "BenchFlowError"),
        ("testing/scripted_model/__init__.py", "HTTPError"),
    }


def test_a_class_outside_of_the_tree_is_named_by_its_base() -> None:
    failure = failure_of(HelperDiedError("it died"))
    assert (failure.type, failure.category, failure.retryable) == ("SandboxError", "sandbox", True)

    class PluginError(errors.SandboxError):
        category = "plugin"

    assert (failure_of(PluginError("no")).type, failure_of(PluginError("no")).category) == ("PluginError", "plugin")


@pytest.mark.parametrize("kind", KINDS)
def test_an_outage_is_an_error_that_passes(kind: type[errors.BenchFlowError]) -> None:
    assert kind.retryable or not kind.is_outage


def test_every_category_that_a_job_retries_by_default_is_one() -> None:
    assert set(RetryConfig().categories) <= {kind.category for kind in KINDS}
    # Each costs the agent's model calls again, and none of them gets better by itself.
    assert not {"internal", "task", "usage", "agent", "verifier"} & set(RetryConfig().categories)


@pytest.mark.parametrize(
    ("code", "kind", "is_outage"),
    [
        (errno.ENOSPC, errors.DiskFullError, True),
        (errno.EDQUOT, errors.DiskFullError, True),
        (errno.EIO, errors.StoreError, True),
        (errno.ESTALE, errors.StoreError, True),
        (errno.EMFILE, errors.StoreError, True),
        (errno.EACCES, errors.StoreAccessError, False),
        (errno.EROFS, errors.StoreAccessError, False),
        (errno.ENOTDIR, errors.StoreAccessError, False),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_what_the_disk_says_passes_or_does_not(code: int, kind: type[errors.StoreError], is_outage: bool) -> None:
    error = storage_error(OSError(code, "so"), "/results/x")
    assert (type(error), error.is_outage, error.retryable, error.file) == (kind, is_outage, is_outage, "/results/x")


def test_a_full_disk_is_known_wherever_it_was_met_and_other_errors_of_the_system_are_not() -> None:
    assert failure_of(OSError(errno.ENOSPC, "No space left on device", "/state/x")).type == "DiskFullError"
    refused = ConnectionRefusedError(errno.ECONNREFUSED, "refused")
    assert typed_error(refused) is refused


def test_an_unknown_error_may_pass() -> None:
    failure = failure_of(KeyError("reward"))
    assert (failure.category, failure.retryable) == ("internal", True)
