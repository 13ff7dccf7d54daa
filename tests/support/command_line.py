"""The command line as tests see it: arguments in; exit status, output and errors out. Conditions to wait for."""

from __future__ import annotations

import json
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
