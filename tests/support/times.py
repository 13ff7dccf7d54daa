"""A pytest plugin that records how long each fixture, set-up, call and teardown takes.

`make test-times` loads it with `-p`; each process of the run appends JSON lines to a file of its own in
`$BENCHFLOW_TEST_TIMES`. `tools/test_times.py` reads them.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

VARIABLE = "BENCHFLOW_TEST_TIMES"
"""Environment variable that names the directory of the records."""


class _Recorder:
    def __init__(self, file: Path) -> None:
        self.file = file.open("a", buffering=1)

    def write(self, **row: Any) -> None:
        self.file.write(json.dumps(row) + "\n")


_recorder: _Recorder | None = None


def pytest_configure(config: pytest.Config) -> None:
    global _recorder
    process = os.environ.get("PYTEST_XDIST_WORKER", "main")
    _recorder = _Recorder(Path(os.environ[VARIABLE]) / f"{process}-{os.getpid()}.jsonl")


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """Time one fixture. The fixtures that it depends on are set up before this hook, so they are not counted in it."""
    started = time.perf_counter()
    try:
        return (yield)
    finally:
        if _recorder is not None:
            _recorder.write(
                kind="fixture",
                name=fixturedef.argname,
                scope=fixturedef.scope,
                base=fixturedef.baseid,
                test=request.node.nodeid,
                seconds=round(time.perf_counter() - started, 4),
            )


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    # The controller of an xdist run sees each report a second time.
    if _recorder is not None and not hasattr(report, "node"):
        _recorder.write(
            kind=report.when,
            test=report.nodeid,
            outcome=report.outcome,
            seconds=round(report.duration, 4),
        )
