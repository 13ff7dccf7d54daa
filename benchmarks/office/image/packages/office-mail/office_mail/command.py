"""The program `office-mail`."""

from __future__ import annotations

from office_core.command_line import run


def main() -> int:
    return run("mail", 9101)
