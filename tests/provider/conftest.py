"""The state directory of the sandboxes of a test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.local_sandboxes import mounted_store

UseState = Callable[[str], None]


@pytest.fixture(scope="module")
def mounted_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A state directory for the local sandboxes of a module's tests."""
    with mounted_store(tmp_path_factory.mktemp("state")) as state:
        yield state


@pytest.fixture
def use_state(request: pytest.FixtureRequest, state: Path, monkeypatch: pytest.MonkeyPatch) -> UseState:
    """Have sandboxes of a kind in the state directory that suits it: local ones share a module's."""

    def use(kind: str) -> None:
        if kind == "local":
            monkeypatch.setenv("BENCHFLOW_STATE_DIR", str(request.getfixturevalue("mounted_state")))

    return use
