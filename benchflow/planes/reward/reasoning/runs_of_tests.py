"""Recognise tool calls that run tests: by known test programs, and by names that look like tests."""

from __future__ import annotations

import re
from typing import Literal

from benchflow.planes.reward.action.shell_reader import ShellCommand
from benchflow.planes.reward.action.tool_calls import ToolCall

Kind = Literal["runner", "other"]


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_RUNNERS = _words("""
    pytest py.test tox nox jest vitest mocha ava rspec phpunit bats ctest karma unittest trial nosetests
    minitest nextest behave cucumber prove
""")
_SUBCOMMANDS = {
    **dict.fromkeys(
        ("go", "cargo", "dotnet", "deno", "bun", "swift", "mix", "zig", "bazel", "sbt", "stack"), ("test",)
    ),
    **dict.fromkeys(("npm", "yarn", "pnpm"), ("test", "t")),
    **dict.fromkeys(("make", "gmake", "just", "task", "ninja", "meson"), ("test", "tests", "check")),
    **dict.fromkeys(("mvn", "mvnw", "gradle", "gradlew"), ("test", "check", "verify")),
    "rake": ("test", "spec"),
    "rails": ("test",),
    "manage.py": ("test",),
}
_STARTERS = _words("""
    python python3 uv poetry pipenv hatch rye pdm npx pnpx bunx yarn pnpm npm bundle run exec coverage
    node dlx -m --
""")
_LOOKS = _words("""
    cat less more head tail ls ll find grep rg sed awk echo printf cd mkdir touch rm cp mv vim vi nano
    chmod chown diff wc git sort tree stat file which pip curl wget tee true test [ [[ export
""")
_LIKE_A_TEST = re.compile(
    r"(?:^|[^a-z])(?:py)?(?:tests?|checks?|checker|verify|verification|validate|spec)(?![a-z])", re.I
)


def runs_tests(call: ToolCall) -> Kind | None:
    """Return `runner` for a call of a known test program, `other` for a call that may run tests; else None."""
    kinds = {_kind(command) for command in call.commands}
    if "runner" in kinds:
        return "runner"
    if "other" in kinds or call.name == "subagent":
        return "other"
    # The agent may have a special tool for tests.
    return "other" if not call.accesses and _LIKE_A_TEST.search(call.name.lower()) else None


def _kind(command: ShellCommand) -> Kind | None:
    """Return the kind of a simple command; None if it runs no tests."""
    words = [word.rpartition("/")[2] for word in command.words]
    if not words:
        return None
    for place, word in enumerate(words):
        if word in _RUNNERS or (word == "node" and "--test" in words[place:]):
            return "runner"
        if any(one in _SUBCOMMANDS.get(word, ()) or one.startswith("test:") for one in words[place + 1 :][:4]):
            return "runner" if word in _SUBCOMMANDS else _other(command)
        if word not in _STARTERS and not word.startswith("python"):
            break
    return _other(command)


def _other(command: ShellCommand) -> Kind | None:
    """Return `other` if a word of the command looks like a test, and the program is none that only looks at files."""
    if command.name in _LOOKS:
        return None
    return "other" if any(_LIKE_A_TEST.search(word) for word in command.words) else None
