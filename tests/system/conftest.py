"""The jobs of `support.system_job` for all tests of this lane: begun when the run begins, read when they are over."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support import run
from support.made_once import attempt_of
from support.system_job import JOBS, Results, SystemJobs


def _jobs(session: pytest.Session, directory: Path) -> SystemJobs | None:
    """The jobs that have tasks of every module of which a test is to be run; None without any."""
    modules: dict[ModuleType, bool] = {}
    for item in session.items:
        if "system_jobs" in item.fixturenames:  # type: ignore[attr-defined]
            module = item.module  # type: ignore[attr-defined]
            modules[module] = modules.get(module, False) or item.get_closest_marker("long") is not None
    return SystemJobs(directory, run.stack_state(directory), modules) if modules else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let modules that read these jobs come last of this lane: others need not wait."""
    here = Path(__file__).parent
    readers = {item.path for item in items if "system_jobs" in getattr(item, "fixturenames", ())}
    places = [index for index, item in enumerate(items) if item.path.is_relative_to(here)]
    ordered = sorted((items[index] for index in places), key=lambda item: item.path in readers)
    for index, item in zip(places, ordered, strict=True):
        items[index] = item


def pytest_collection_finish(session: pytest.Session) -> None:
    """Submit the jobs now: when their tests come, most will be over."""
    if session.config.option.collectonly or os.environ.get("PYTEST_XDIST_WORKER", "gw0") != "gw0":
        return
    directory = run.run_directory(session.config)
    if (jobs := _jobs(session, directory)) is not None:
        # What goes wrong with it is for those to tell who read the jobs' results: they submit them then.
        with contextlib.suppress(Exception):
            jobs.submit()


@pytest.fixture(scope="session")
def system_jobs(request: pytest.FixtureRequest, run_directory: Path) -> SystemJobs:
    """The jobs of this run."""
    jobs = _jobs(request.session, run_directory)
    assert jobs is not None
    return jobs


def _results_of(job: str) -> Any:
    @pytest.fixture(name=f"{job}_results")
    def results(request: pytest.FixtureRequest, system_jobs: SystemJobs) -> Results:
        return system_jobs.results(job, request.module, attempt_of(request))

    results.__doc__ = f"Results of the job {job!r} by the names of their tasks."
    return results


def _directory_of(job: str) -> Any:
    @pytest.fixture(name=f"{job}_job")
    def directory(request: pytest.FixtureRequest, system_jobs: SystemJobs) -> Path:
        return system_jobs.job(job, request.module, attempt_of(request))

    directory.__doc__ = f"Directory of the job {job!r}, which is over."
    return directory


for _job in JOBS:
    globals()[f"{_job}_results"] = _results_of(_job)
    globals()[f"{_job}_job"] = _directory_of(_job)
