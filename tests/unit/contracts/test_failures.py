"""Errors as data and back: nothing that helps a reader is lost, and logs are cut at their beginning."""

from __future__ import annotations

import inspect

import pytest

from benchflow import errors
from benchflow.contracts.failures import MAX_TEXT, error_of, failure_of

LEAVES = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, errors.BenchFlowError) and not kind.__subclasses__()
]


@pytest.mark.parametrize("kind", LEAVES)
def test_every_error_survives_as_data(kind: type[errors.BenchFlowError]) -> None:
    error = kind("it broke", file="f", key="k", remedy="mend it", log_tail="last words")
    failure = failure_of(error, "execute")
    assert (failure.type, failure.category, failure.phase) == (kind.__name__, kind.category, "execute")
    again = error_of(failure)
    assert type(again) is kind
    assert str(again) == str(error)
    assert kind.__doc__


def test_the_public_errors_are_also_pythons_own() -> None:
    assert issubclass(errors.AgentTimeoutError, TimeoutError)
    assert issubclass(errors.AgentConnectionError, ConnectionError)
    assert errors.AgentConnectionError.retryable


def test_what_is_not_ours_is_a_fault_of_the_engine() -> None:
    assert failure_of(ValueError("odd")).message == "ValueError: odd"
    assert failure_of(ValueError()).category == "internal"
    assert type(error_of(failure_of(ValueError("odd")))) is errors.BenchFlowError


def test_a_name_that_is_no_error_of_ours_becomes_the_base() -> None:
    failure = failure_of(errors.TaskError("x")).model_copy(update={"type": "annotations"})
    assert type(error_of(failure)) is errors.BenchFlowError


def test_long_texts_are_cut_and_the_end_of_a_log_is_kept() -> None:
    failure = failure_of(errors.TaskError("m" * 9999, log_tail="x" * 9999 + "the cause"))
    assert len(failure.message) == MAX_TEXT
    assert failure.log_tail is not None and len(failure.log_tail) == MAX_TEXT
    assert failure.log_tail.endswith("the cause")
