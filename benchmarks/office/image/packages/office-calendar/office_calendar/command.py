"""The program `office-calendar`."""

from __future__ import annotations

from office_core.command_line import run


def main() -> int:
    return run("calendar", 9103)
