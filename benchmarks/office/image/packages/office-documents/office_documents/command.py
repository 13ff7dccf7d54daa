"""The program `office-documents`."""

from __future__ import annotations

from office_core.command_line import run


def main() -> int:
    return run("documents", 9104)
