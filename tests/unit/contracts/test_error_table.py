"""The one table of errors: what is tried again, and by whom. The documentation says the same as the types."""

from __future__ import annotations

import errno
import inspect

import pytest
from support.paths import ROOT

from benchflow import errors
from benchflow.contracts.failures import failure_of, storage_error, typed_error
from benchflow.contracts.job_retries import RetryConfig

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
