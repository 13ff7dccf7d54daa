"""Text of an attacker: what would steer a terminal, forge a line or turn the reader's eye, and how to find it raw."""

from __future__ import annotations

import re

HOSTILE = (
    "a\x1b]52;c;ZXZpbA==\x07\x1b]0;owned\x07\x1b[2J\x1b[38;5;99mred\x1b[0m\x9b31m\x9d0;t\x9c\x00\x08\x0b\x7f\x85"
    "\u061c\u200e\u202eevil\u2066\u2028\u2029\u200b\ufeff\U000e0041[link=https://evil.example]here[/link]:bomb:\rz"
)
"""One line for whoever counts line feeds."""

FORGED = f"{HOSTILE}\n  9 rollouts:  9 passed"
"""The same, and a line that looks like one of ours."""

RAW = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff\U000e0000-\U000e007f]"
)
"""Characters of it that no terminal may receive, but for the sequences of our own."""


OURS = re.compile(r"\x1b\[(?:\?25[lh]|2K|\d*A|(?!38;5;99m)[\d;]*m)|\r")
"""What our own colours and live displays send to a terminal: none of it is in the text of an attacker."""


def raw_in(output: str) -> list[str]:
    """Return the places of an output at which something reaches a terminal that is not ours."""
    rest = OURS.sub("", output)
    return [rest[max(0, found.start() - 40) : found.end() + 20] for found in RAW.finditer(rest)]
