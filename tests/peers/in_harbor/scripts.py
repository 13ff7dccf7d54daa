"""The shell scripts of generated tasks: oracles that leave traces, and verifiers whose numbers say what they saw.

A verifier makes a number of each thing that it observes (its working directory, its user, its variables, what the
oracle left), so that two engines that run it alike get the same rewards, key by key, and others do not.
"""

from __future__ import annotations

import random
import re
from typing import NamedTuple

SHEBANGS = ("#!/bin/bash\n", "#!/bin/sh\n", "#!/usr/bin/env bash\n", "")

SHORT_SEC, LONG_SEC = 15, 120
"""Seconds that a script may take, and that it takes, where it is to be ended. A busy machine needs some to start it."""

VARIABLES = (
    "SHARED",
    *(f"{prefix}_{name}" for prefix in ("ENVIRONMENT", "VERIFIER", "SOLUTION", "IMAGE") for name in ("A", "B")),
)
"""Names that any of a task's tables, or its Dockerfile, may set."""

OBSERVE = r"""
number() { printf '%s' "$1" | cksum | { read -r sum rest; echo $((sum % 1000)); }; }
facts=
keys=
observe() { printf '%s=<%s>\n' "$1" "$2"; facts="$facts$1=$2;"; keys="$keys, \"$1\": $(number "$2")"; }
observe cwd "$(pwd)"
observe uid "$(id -u)"
observe gid "$(id -g)"
observe script "$0"
observe answer "$(cat ./answer.txt 2>&1 | head -c 200)"
observe data "$(cat ./data.txt 2>/dev/null)"
observe note "$(cat ./note.txt 2>/dev/null)"
observe prepared "$(cat /tmp/prepared 2>/dev/null)"
observe solved "$(cat /tmp/solved 2>/dev/null)"
observe collected "$(cat /tmp/collected 2>/dev/null)"
observe stale "$(ls /logs/verifier/reward.* 2>/dev/null)"
observe tests "$(LC_ALL=C ls -A "$(dirname "$0")" | tr '\n' ' ')"
observe helper "$(cat "$(dirname "$0")/helper.txt" 2>/dev/null)"
observe variables "@VARIABLES@"
reward=$(printf '0.%03d' "$(number "$facts")")
text=/logs/verifier/reward.txt
json=/logs/verifier/reward.json
"""


class Shape(NamedTuple):
    """How a verifier writes its reward. lines: of shell, where `$reward` and `$keys` are what it has observed."""

    name: str
    lines: str


SHAPES = (
    Shape("text", 'echo "$reward" > $text'),
    Shape("scalar-and-keys", 'echo "{\\"reward\\": $reward$keys}" > $json'),
    Shape("several-keys", 'echo "{${keys#, }}" > $json'),
    Shape("one-key", 'echo "{\\"reward\\": $reward}" > $json'),
    Shape("one-other-key", 'echo "{\\"accuracy\\": $reward}" > $json'),
    Shape("text-without-newline", 'printf %s "$reward" > $text'),
    Shape("text-with-blanks", 'printf "\\n  %s \\n\\n" "$reward" > $text'),
    Shape("text-exponent", 'echo "${reward#0.}e-3" > $text'),
    Shape("text-integer", "echo 1 > $text"),
    Shape("both-agree", 'echo "$reward" > $text; echo "{\\"reward\\": $reward$keys}" > $json'),
    Shape("fails-after-reward", 'echo "{\\"reward\\": $reward$keys}" > $json; exit 7'),
    Shape("zero", 'echo "{\\"reward\\": 0$keys}" > $json'),
    Shape("no-file", "true"),
    Shape("empty-text", ": > $text"),
    Shape("not-a-number", "echo passed > $text"),
    Shape("text-nan", "echo nan > $text"),
    Shape("json-nan", 'echo "{\\"reward\\": NaN}" > $json'),
    Shape("string", 'echo "{\\"reward\\": \\"$reward\\"}" > $json'),
    Shape("bare-number", 'echo "$reward" > $json'),
    Shape("broken-json-and-text", 'echo "{" > $json; echo "$reward" > $text'),
    Shape("both-differ", 'echo 1 > $text; echo "{\\"reward\\": $reward}" > $json'),
    Shape("boolean", 'echo "{\\"reward\\": true}" > $json'),
    Shape("out-of-range", "echo 1.5 > $text"),
    Shape("structured", 'echo "{\\"reward\\": $reward, \\"details\\": [{\\"name\\": \\"a\\"}]}" > $json'),
    Shape("null", 'echo "{\\"reward\\": null, \\"accuracy\\": $reward}" > $json'),
    Shape("empty-object", 'echo "{}" > $json'),
)

TOO_LATE = Shape("too-late", f'echo "$reward" > $text; sleep {LONG_SEC}')
"""A reward of a verifier that does not end in time."""

STEP_SHAPES = SHAPES[:13]
"""Those of steps: mostly numbers, since one that gives none ends the task."""


def test_script(drawn: random.Random, shape: Shape, *, in_workspace: bool = True) -> str:
    """Return a verifier that observes what it can, and writes that in a shape.

    in_workspace: whether it looks at the workspace's files, too.
    """
    variables = " ".join(f"{name}=[${{{name}-unset}}]" for name in VARIABLES)
    observe = OBSERVE.replace("@VARIABLES@", variables)
    if not in_workspace:
        observe = re.sub(r"observe \w+ \"\$\(cat \./.*\n", "", observe)
    return f"{drawn.choice(SHEBANGS)}{observe}{shape.lines}\n"


def solve_script(drawn: random.Random, *, ends: bool = True) -> str:
    """Return an oracle that says where and as whom it was run, with which variables; some leave more, or fail.

    ends: whether it does so in time.
    """
    variables = " ".join(f"{name}=[${{{name}-unset}}]" for name in VARIABLES if not name.startswith("VERIFIER"))
    lines = [
        f'echo "$(pwd) $(id -u) $0 {variables}" >> /tmp/solved',
        "chmod 666 /tmp/solved 2>/dev/null",
        # An agent that is not root has the workspace for its own with us, as docs/rewards.md says, and with Harbor not.
        '[ "$(id -u)" != 0 ] || echo answered >> answer.txt',
    ]
    if drawn.random() < 0.3:
        # Rewards of the agent's own, which no engine may take for the verifier's.
        lines.append("echo 1 > /logs/verifier/reward.txt; echo '{\"reward\": 1}' > /logs/verifier/reward.json")
    if not ends:
        lines.append(f"sleep {LONG_SEC}")
    elif drawn.random() < 0.2:
        lines.append("exit 5")
    return drawn.choice(SHEBANGS) + "\n".join(lines) + "\n"
