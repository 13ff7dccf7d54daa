"""The command line as tests see it: arguments in; exit status, output and errors out. Conditions to wait for."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Ran:
    """What a command did. status: its exit status."""

    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Bench = Callable[..., Ran]


def until(holds: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait until it does. Raises `AssertionError`."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.1)
