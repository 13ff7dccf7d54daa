"""The program `office-files`."""

from __future__ import annotations

from office_core.command_line import run


def main() -> int:
    return run("files", 9105)
