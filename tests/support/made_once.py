"""Fixtures that are made once for all tests of a module, and once more for tests that are run again."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest


def attempt_of(request: pytest.FixtureRequest) -> int:
    """Return how often the test is run with this time: more than once, if it has failed."""
    return int(getattr(request.node, "execution_count", 1))


def made_once(*, params: Sequence[Any] | None = None) -> Callable[[Callable[..., Any]], Any]:
    """Make a fixture of a function that is given an empty directory, and the parameter if there are any.

    The function may be a coroutine function. It is called with the module's stack (see `module_jobs`) for the first
    test that wants its value. The others have the same value, or the same error; a test that is run again because it
    failed has another one, which was made from the start.
    """

    def make_fixture(make: Callable[..., Any]) -> Any:
        values: dict[tuple[Any, int], Any] = {}
        errors: dict[tuple[Any, int], BaseException] = {}

        @pytest.fixture(name=make.__name__, params=params)
        def value(request: pytest.FixtureRequest, module_jobs: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
            key = getattr(request, "param", None), attempt_of(request)
            if key not in values and key not in errors:
                given = [tmp_path_factory.mktemp(make.__name__), *([request.param] if params else [])]
                try:
                    made = make(*given)
                    values[key] = asyncio.run(made) if inspect.iscoroutine(made) else made
                except BaseException as error:
                    errors[key] = error
            if key in errors:
                raise errors[key]
            return values[key]

        return value

    return make_fixture
