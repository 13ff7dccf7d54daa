"""Replacement of image names in a Dockerfile by images that the same provider built.

A build that uses such an image is another build when that image changes, even if its own files do not: so the reference
goes into the digest.
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
    """A Dockerfile in which image names are replaced by references."""

    text: str
    """Text of the Dockerfile."""

    used: dict[str, str] = field(default_factory=dict)
    """References that were inserted, by the names that they replaced (with a tag)."""

    def extend_digest(self, own: str) -> str:
        """Return a digest that also changes with the references.

        Args:
            own: Digest without them; returned if there are none.
        """
        if not self.used:
            return own
        return hashlib.sha256(
            "\0".join([own, *(f"{n}\0{r}" for n, r in sorted(self.used.items()))]).encode()
        ).hexdigest()


def find_base(bases: Mapping[str, T], name: str) -> T | None:
    """Return the value for an image's name, of which the tag `latest` may be left out; None if there is none."""
    wanted = add_tag(name)
    return next((base for known, base in bases.items() if add_tag(known) == wanted), None)


def resolve_bases(text: str, bases: Mapping[str, str]) -> Resolved:
    """Replace image names by references: in FROM, and in `COPY --from`. Line numbers do not change.

    Args:
        text: Text of the Dockerfile.
        bases: References, by image name.
    """
    return _Resolver(bases).resolve(text) if bases else Resolved(text)


def add_tag(name: str) -> str:
    """Return an image's name, with `latest` as its tag if it has neither tag nor digest."""
    return name if "@" in name or ":" in name.rpartition("/")[2] else f"{name}:latest"


class _Resolver:
    """The replacement in one Dockerfile, with the arguments and stages of the instructions read so far."""

    def __init__(self, bases: Mapping[str, str]) -> None:
        self._bases = bases
        self._args: dict[str, str] = {}
        self._stages: set[str] = set()
        self._used: dict[str, str] = {}
        self._has_stage = False

    def resolve(self, text: str) -> Resolved:
        """Return the text with the names replaced."""
        escape = read_escape(text)
        gap = rf"(?:[ \t]|{re.escape(escape)}[ \t]*\r?\n(?:[ \t]*(?:#[^\n]*)?\n)*)+"
        name = rf"(?P<name>(?:(?!{re.escape(escape)}[ \t]*\r?\n)\S)+)"
        origin = re.compile(rf"[\s\ufeff]*FROM{gap}(?:--\S+{gap})*{name}(?:{gap}AS{gap}(?P<stage>\S+))?", re.I)
        copied = re.compile(rf"\s*COPY{gap}(?:--\S+{gap})*?--from={name}", re.I)
        done, at = [], 0
        for start, end, word in iterate_instructions(text, escape):
            span = text[start:end]
            if word == "ARG" and not self._has_stage:
                self._declare(re.sub(rf"{re.escape(escape)}[ \t]*\r?\n", "", span))
            match = {"FROM": origin, "COPY": copied}[word].match(span) if word in ("FROM", "COPY") else None
            if match is None:
                continue
            if reference := self._find_reference(match["name"]):
                done += [text[at : start + match.start("name")], reference]
                at = start + match.end("name")
            if word == "FROM":
                self._has_stage = True
                self._stages |= {match["stage"].lower()} if match["stage"] else set()
        return Resolved("".join([*done, text[at:]]), self._used)

    def _find_reference(self, written: str) -> str | None:
        """Return the reference for an image name as written; None if it is a stage, or no base."""
        name = self._expand(written)
        if not name or name.lower() in self._stages:
            return None
        reference = find_base(self._bases, name)
        if reference is not None:
            self._used[add_tag(name)] = reference
        return reference

    def _declare(self, instruction: str) -> None:
        """Record the defaults of an ARG instruction."""
        from benchflow.planes.sandbox.local.build.syntax import split_words

        for word in split_words(instruction.strip())[1:]:
            name, given, value = word.partition("=")
            if given:
                self._args[name] = self._expand(value)

    def _expand(self, text: str) -> str:
        """Return a word without quotes and variables; empty if only the builder knows its value."""
        from benchflow.planes.sandbox.local.build.syntax import SyntaxMistakeError, UnsupportedSyntaxError, expand

        try:
            return expand(text, self._args, lambda name: None)
        except (SyntaxMistakeError, UnsupportedSyntaxError):
            return ""


def read_escape(text: str) -> str:
    """Return the escape character of a Dockerfile: that of its `escape` directive, else the backslash."""
    for line in text.removeprefix("\ufeff").splitlines():
        match = _DIRECTIVE.fullmatch(line.strip())
        if match is None:
            break
        if match[1].lower() == "escape":
            return match[2]
    return "\\"


def iterate_instructions(text: str, escape: str) -> Iterator[tuple[int, int, str]]:
    """Yield (start, end, name) of each instruction of a Dockerfile; offsets in characters, name in upper case.

    An instruction may have several lines. Here-documents are skipped.

    Args:
        text: Text of the Dockerfile.
        escape: Its escape character.
    """
    lines = text.splitlines(keepends=True)
    shown = [line.strip() for line in lines]
    number, offset = 0, 0
    while number < len(lines):
        first = lines[number].removeprefix("\ufeff").strip()
        begin, last = offset, number
        if first and not first.startswith("#"):
            # Empty lines and comments within an instruction do not end it.
            while last + 1 < len(lines) and (
                not shown[last] or shown[last].startswith("#") or shown[last].endswith(escape)
            ):
                last += 1
            span = "".join(lines[number : last + 1])
            word = first.split()[0].upper()
            yield begin, begin + len(span), word
            if word in ("RUN", "COPY", "ADD"):
                for match in _HERE_DOCUMENT.finditer(span):
                    end = next((n for n in range(last + 1, len(lines)) if shown[n] == match[2]), None)
                    # One without an end does not count.
                    last = last if end is None else end
        offset += sum(len(line) for line in lines[number : last + 1])
        number = last + 1
