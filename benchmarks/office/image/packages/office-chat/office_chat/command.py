"""The program `office-chat`."""

from __future__ import annotations

from office_core.command_line import run


def main() -> int:
    return run("chat", 9102)
