"""What tests of benchmark packages share: the office world, seeded once, and its services as they are needed."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.office_services import PACKAGES, Running, run, serving, write_worlds


@pytest.fixture(scope="session")
def seeded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The databases of the base company, as seeded; to be copied."""
    root = tmp_path_factory.mktemp("office")
    worlds = write_worlds(root / "worlds", "plain")
    made = run("office-seed", "plain", "--data", str(root / "data"), "--world", str(worlds))
    assert made.returncode == 0, made.stderr
    return root / "data"


@pytest.fixture
def start(seeded: Path, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Starts services over fresh copies of the databases."""
    with ExitStack() as stack:

        def begin(name: str, *arguments: str) -> Running:
            database = tmp_path / f"{name}.db"
            if not database.exists():
                shutil.copy(seeded / f"{name}.db", database)
            return stack.enter_context(serving(name, database, *arguments))

        yield begin


@pytest.fixture(scope="module")
def office(seeded: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Running]]:
    """Starts services that the tests of a module share, for what changes nothing."""
    directory, running = tmp_path_factory.mktemp("office"), dict[str, Running]()
    with ExitStack() as stack:

        def shared(name: str) -> Running:
            if name not in running:
                shutil.copy(seeded / f"{name}.db", directory)
                running[name] = stack.enter_context(serving(name, directory / f"{name}.db"))
            return running[name]

        yield shared


@pytest.fixture
def office_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    """The packages of the office world can be imported."""
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    for path in PACKAGES:
        monkeypatch.syspath_prepend(path)
