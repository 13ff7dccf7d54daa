"""Images that a Dockerfile builds upon and that the same provider made: found in its text by the names FROM has.

A build that uses one is another build when that image changes, whatever its own files are: so the reference goes into
the digest.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")

_DIRECTIVE = re.compile(r"#\s*([A-Za-z]+)\s*=\s*(\S+)")
_HERE_DOCUMENT = re.compile(r"(?<!<)<<-?([\"']?)([A-Za-z_]\w*)\1")


@dataclass
class Resolved:
    """A Dockerfile with its bases in place. used: the references that it now has, by the names that it had."""

    text: str
    used: dict[str, str] = field(default_factory=dict)

    def digest(self, own: str) -> str:
        """A digest that also changes with the bases. own: without them."""
        if not self.used:
            return own
        return hashlib.sha256(
            "\0".join([own, *(f"{n}\0{r}" for n, r in sorted(self.used.items()))]).encode()
        ).hexdigest()


def find_base(bases: Mapping[str, T], name: str) -> T | None:
    """What there is for an image's name; a name without tag and digest is the one with `latest`."""
    wanted = with_tag(name)
    return next((base for known, base in bases.items() if with_tag(known) == wanted), None)


def resolve(text: str, bases: Mapping[str, str]) -> Resolved:
    """Put references in the place of names: in FROM, and in COPY --from. Lines stay the lines that they are."""
    return _Resolver(bases).resolve(text) if bases else Resolved(text)


def with_tag(name: str) -> str:
    """An image's name with `latest`, where it has neither tag nor digest."""
    return name if "@" in name or ":" in name.rpartition("/")[2] else f"{name}:latest"


class _Resolver:
    """What the instructions before leave to those that follow: arguments, and names of stages."""

    def __init__(self, bases: Mapping[str, str]) -> None:
        self._bases = bases
        self._args: dict[str, str] = {}
        self._stages: set[str] = set()
        self._used: dict[str, str] = {}
        self._begun = False

    def resolve(self, text: str) -> Resolved:
        escape = escape_of(text)
        gap = rf"(?:[ \t]|{re.escape(escape)}[ \t]*\r?\n(?:[ \t]*(?:#[^\n]*)?\n)*)+"
        name = rf"(?P<name>(?:(?!{re.escape(escape)}[ \t]*\r?\n)\S)+)"
        origin = re.compile(rf"[\s\ufeff]*FROM{gap}(?:--\S+{gap})*{name}(?:{gap}AS{gap}(?P<stage>\S+))?", re.I)
        copied = re.compile(rf"\s*COPY{gap}(?:--\S+{gap})*?--from={name}", re.I)
        done, at = [], 0
        for start, end, word in instructions_of(text, escape):
            span = text[start:end]
            if word == "ARG" and not self._begun:
                self._declare(re.sub(rf"{re.escape(escape)}[ \t]*\r?\n", "", span))
            match = {"FROM": origin, "COPY": copied}[word].match(span) if word in ("FROM", "COPY") else None
            if match is None:
                continue
            if reference := self._reference(match["name"]):
                done += [text[at : start + match.start("name")], reference]
                at = start + match.end("name")
            if word == "FROM":
                self._begun = True
                self._stages |= {match["stage"].lower()} if match["stage"] else set()
        return Resolved("".join([*done, text[at:]]), self._used)

    def _reference(self, written: str) -> str | None:
        name = self._expand(written)
        if not name or name.lower() in self._stages:
            return None
        reference = find_base(self._bases, name)
        if reference is not None:
            self._used[with_tag(name)] = reference
        return reference

    def _declare(self, instruction: str) -> None:
        from benchflow.planes.sandbox.local.build.syntax import words

        for word in words(instruction.strip())[1:]:
            name, given, value = word.partition("=")
            if given:
                self._args[name] = self._expand(value)

    def _expand(self, text: str) -> str:
        """What is written, without quotes and variables; nothing where only the builder knows what that is."""
        from benchflow.planes.sandbox.local.build.syntax import Mistake, Unsupported, expand

        try:
            return expand(text, self._args, lambda name: None)
        except (Mistake, Unsupported):
            return ""


def escape_of(text: str) -> str:
    for line in text.removeprefix("\ufeff").splitlines():
        match = _DIRECTIVE.fullmatch(line.strip())
        if match is None:
            break
        if match[1].lower() == "escape":
            return match[2]
    return "\\"


def instructions_of(text: str, escape: str) -> Iterator[tuple[int, int, str]]:
    """Begin, end and name of each instruction, whatever lines it has; here-documents are no instructions."""
    lines = text.splitlines(keepends=True)
    number, offset = 0, 0
    while number < len(lines):
        first = lines[number].removeprefix("\ufeff").strip()
        begin, last = offset, number
        if first and not first.startswith("#"):
            while last + 1 < len(lines) and _goes_on(lines[last], escape):
                last += 1
            span = "".join(lines[number : last + 1])
            word = first.split()[0].upper()
            yield begin, begin + len(span), word
            if word in ("RUN", "COPY", "ADD"):
                last = _after_documents(lines, last, span)
        offset += sum(len(line) for line in lines[number : last + 1])
        number = last + 1


def _goes_on(line: str, escape: str) -> bool:
    """Whether an instruction that has this line has the next one, too. Empty lines and comments in it do not end it."""
    shown = line.strip()
    return not shown or shown.startswith("#") or shown.endswith(escape)


def _after_documents(lines: list[str], last: int, span: str) -> int:
    """The last line of the here-documents of an instruction. What has no end is none."""
    for match in _HERE_DOCUMENT.finditer(span):
        end = next((n for n in range(last + 1, len(lines)) if lines[n].strip() == match[2]), None)
        last = last if end is None else end
    return last
