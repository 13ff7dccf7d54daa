"""The programs that are sent into sandboxes, as far as they can be run here."""

from __future__ import annotations

import ast
import time
from importlib import resources

import pytest

from benchflow.planes.environment.helper import probe


class Scripted(probe.Probe):
    """A probe whose tries meet these; the last one ends the time that there is, `deadline` seconds from now."""

    def __init__(self, *met: tuple[bool, str] | Exception, deadline: float) -> None:
        began = time.monotonic()
        super().__init__("http://localhost:1/", 0.0, began, began + deadline)
        self.met = [*met]

    def ask(self, patience: float) -> tuple[bool, str]:
        met = self.met.pop(0)
        if not self.met:
            self.deadline = 0.0
        if isinstance(met, Exception):
            raise met
        return met


def test_a_whole_try_without_an_answer_is_told() -> None:
    tried = Scripted((False, "HTTP 503"), TimeoutError(), TimeoutError(), deadline=600)
    tried.run()
    assert (tried.healthy, tried.answer) == (False, "timed out")


def test_a_try_that_the_deadline_cuts_short_leaves_the_answer_before_it() -> None:
    # Less than a whole try.
    tried = Scripted((False, "HTTP 503"), TimeoutError(), deadline=probe.TRY / 2)
    tried.run()
    assert (tried.healthy, tried.answer) == (False, "HTTP 503")


@pytest.mark.parametrize("name", ["shared", "snapshot", "restore", "probe", "ports", "observe"])
def test_what_is_sent_holds_to_an_old_python(name: str) -> None:
    text = (resources.files("benchflow.planes.environment.helper") / f"{name}.py").read_text()
    ast.parse(text, feature_version=(3, 7))
    assert "from __future__ import annotations" in text
