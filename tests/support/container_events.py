"""How many containers of a job ran at a time, as the Docker daemon told it: nothing here asks the engine."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import docker

_BEGINS = frozenset({"start", "unpause"})
_ENDS = frozenset({"die", "pause"})


@dataclass
class Running:
    """The containers that a job had."""

    names: set[str] = field(default_factory=set)
    """Of all that were started."""

    paused: set[str] = field(default_factory=set)
    """Of those that were paused at least once."""

    most: int = 0
    """Most that ran at a time, and were not paused."""

    _now: set[str] = field(default_factory=set)
    _killed: set[str] = field(default_factory=set)

    def note(self, event: Mapping[str, Any]) -> None:
        """Take the next event of the daemon."""
        name, action = event["Actor"]["Attributes"]["name"], event["Action"]
        if action == "kill" and event["Actor"]["Attributes"].get("signal") == "9":
            # A paused one is thawed for it, to die.
            self._killed.add(name)
        elif action in _BEGINS and name not in self._killed:
            self._now.add(name)
            self.names.add(name)
        elif action in _ENDS:
            self._now.discard(name)
            if action == "pause":
                self.paused.add(name)
        self.most = max(self.most, len(self._now))


@contextmanager
def running_containers(job_name: str) -> Iterator[Running]:
    """Watch the containers of a job for the time of a block; all of their events are taken when it is over."""
    client = docker.from_env()
    end = f"benchflow-test-end-{job_name}"
    events = client.events(decode=True, filters={"type": ["container", "volume"]})
    found = Running()

    def watch() -> None:
        for event in events:
            attributes = event["Actor"]["Attributes"]
            if event["Type"] == "volume" and event["Actor"]["ID"] == end:
                return
            if event["Type"] == "container" and attributes.get("benchflow.job") == job_name:
                found.note(event)

    watching = threading.Thread(target=watch, daemon=True)
    watching.start()
    try:
        yield found
    finally:
        # The daemon tells events in their order: with this one, all before it have come.
        client.volumes.create(end).remove()
        watching.join(60)
        client.close()
