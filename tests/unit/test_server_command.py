"""What the embedded server is started with."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from benchflow import temporal_server
from benchflow.errors import ConfigError
from benchflow.paths import StatePaths
from benchflow.stack import SYNCHRONOUS_VARIABLE


def synchronous() -> list[str]:
    """Return the settings of the database that say when a commit is on the disk."""
    record: Any = SimpleNamespace(port=1, namespace="any")
    return [
        word
        for word in temporal_server._make_command(StatePaths.default(), record, 2)
        if word.startswith("synchronous=")
    ]


@pytest.mark.parametrize(("given", "wanted"), [("", "normal"), ("normal", "normal"), ("full", "full")])
def test_a_commit_waits_for_the_disk_where_the_user_wants_that(
    monkeypatch: pytest.MonkeyPatch, given: str, wanted: str
) -> None:
    monkeypatch.setattr(temporal_server, "find_temporal_binary", lambda: "temporal")
    monkeypatch.setenv(SYNCHRONOUS_VARIABLE, given)
    assert synchronous() == [f"synchronous={wanted}"]


def test_another_word_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(temporal_server, "find_temporal_binary", lambda: "temporal")
    monkeypatch.setenv(SYNCHRONOUS_VARIABLE, "off")
    with pytest.raises(ConfigError) as refused:
        synchronous()
    assert refused.value.key == SYNCHRONOUS_VARIABLE
