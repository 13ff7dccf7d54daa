"""The images outside of a Dockerfile that it takes files from: in FROM, `COPY --from` and `RUN --mount=from`.

A tag may be moved to another image, which makes an earlier build stale. So the ids of these images are part of a
build's identity.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from benchflow.errors import UnsupportedFeatureError
from benchflow.planes.sandbox.bases import iterate_instructions, read_escape

_UNKNOWN = "\0"
"""Value of an argument that only the builder knows."""

_MOUNT_FROM = re.compile(r"""(?:^|,)["']?from=([^,"']*)""", re.I)


@dataclass(frozen=True)
class ExternalImage:
    """An image that a Dockerfile names."""

    name: str
    """Name, as the Dockerfile has it."""

    platform: str | None = None
    """Value of `FROM --platform`; None if it is not given."""


def find_external_images(text: str, shown: str, arguments: Mapping[str, str]) -> list[ExternalImage]:
    """Return the images that a Dockerfile names and that are no stages of it, each once.

    Args:
        text: Text of the Dockerfile.
        shown: Its name in errors.
        arguments: Build arguments that FROM sees without a declaration.

    Raises:
        UnsupportedFeatureError: Only the builder can tell the name of an image.
    """
    reader = _Reader(shown, arguments)
    escape = read_escape(text)
    for start, end, word in iterate_instructions(text, escape):
        if word in ("ARG", "FROM", "COPY", "RUN"):
            rest = _join_lines(text[start:end], escape).removeprefix("\ufeff").lstrip()[len(word) :].strip()
            reader.read(word, rest, text.count("\n", 0, start) + 1)
    return list(dict.fromkeys(reader.found))


class _Reader:
    """The images found so far, with the arguments and stages of the instructions read."""

    def __init__(self, shown: str, arguments: Mapping[str, str]) -> None:
        self.found: list[ExternalImage] = []
        self._shown = shown
        self._arguments = dict(arguments)
        self._stages = {"scratch"}
        self._has_stage = False

    def read(self, word: str, rest: str, line: int) -> None:
        """Read one instruction."""
        # Imported here, so that commands that build nothing need not load it.
        from benchflow.planes.sandbox.local.build.syntax import SyntaxMistakeError, UnsupportedSyntaxError

        try:
            match word:
                case "ARG" if not self._has_stage:
                    self._declare(rest)
                case "FROM":
                    self._begin_stage(rest)
                case "COPY" | "RUN":
                    self._read_flags(rest)
        except SyntaxMistakeError:
            # Invalid: the builder will refuse it, with a reason.
            return
        except UnsupportedSyntaxError as error:
            raise UnsupportedFeatureError(
                f"line {line}: an image has a name that only its builder can tell: {error.what}",
                file=self._shown,
                key=word,
                remedy="name the image in a FROM with $name, ${name} or ${name:-default}, and elsewhere the stage",
            ) from error

    def _declare(self, rest: str) -> None:
        """Record the defaults of an ARG instruction."""
        from benchflow.planes.sandbox.local.build.syntax import UnsupportedSyntaxError, split_words

        for word in split_words(rest):
            name, given, value = word.partition("=")
            try:
                if given:
                    self._arguments[name] = self._expand(value)
            except UnsupportedSyntaxError:
                # An error only if FROM uses it.
                self._arguments[name] = _UNKNOWN

    def _begin_stage(self, rest: str) -> None:
        """Add the image of a FROM instruction, and record the name of its stage."""
        from benchflow.planes.sandbox.local.build.syntax import parse_flags, split_words

        self._has_stage = True
        given, rest = parse_flags(rest)
        platform = next((self._expand(value) for name, value in given if name == "platform"), "")
        name, *more = split_words(rest) or [""]
        self._add(self._expand(name), platform or None)
        if len(more) == 2 and more[0].upper() == "AS":
            self._stages.add(more[1].lower())

    def _read_flags(self, rest: str) -> None:
        """Add the images in the `--from` and `--mount` flags of an instruction."""
        from benchflow.planes.sandbox.local.build.syntax import UnsupportedSyntaxError, parse_flags

        for flag, value in parse_flags(rest)[0]:
            found = [value.strip("\"'")] if flag == "from" else _MOUNT_FROM.findall(value) if flag == "mount" else []
            for name in found:
                if "$" in name:
                    # Builders refuse variables here, too.
                    raise UnsupportedSyntaxError(name)
                self._add(name, None)

    def _add(self, name: str, platform: str | None) -> None:
        """Add an image, unless the name is that or the number of a stage."""
        from benchflow.planes.sandbox.local.build.syntax import UnsupportedSyntaxError

        if _UNKNOWN in name:
            raise UnsupportedSyntaxError("the value of an ARG")
        if name and not name.isdecimal() and name.lower() not in self._stages:
            self.found.append(ExternalImage(name, platform))

    def _expand(self, text: str) -> str:
        """Return a word without quotes and variables."""
        from benchflow.planes.sandbox.local.build.syntax import expand

        return expand(text, self._arguments, lambda name: None)


def _join_lines(span: str, escape: str) -> str:
    """Return an instruction as one line, without the comments and empty lines in it."""
    lines = [line.rstrip() for line in span.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return " ".join(line.removesuffix(escape) for line in lines)
