"""The images outside of a Dockerfile that it takes files from: in FROM, `COPY --from` and `RUN --mount=from`.

A tag may be moved to another image, and an image that was built before is stale then. So whoever looks for a built
image compares the ids of these.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from benchflow.errors import UnsupportedFeatureError
from benchflow.planes.sandbox.bases import escape_of, instructions_of

_UNKNOWN = "\0"
"""Value of an argument that only the builder can tell."""

_MOUNT_FROM = re.compile(r"""(?:^|,)["']?from=([^,"']*)""", re.I)


@dataclass(frozen=True)
class ExternalImage:
    """An image by the name that the Dockerfile has for it. platform: of `FROM --platform`, if given."""

    name: str
    platform: str | None = None


def external_images(text: str, shown: str, arguments: Mapping[str, str]) -> list[ExternalImage]:
    """Return the images that a Dockerfile names and that are no stages of it, each once.

    Args:
        text: Its content.
        shown: Its name in errors.
        arguments: Build arguments that FROM sees without a declaration.

    Raises:
        UnsupportedFeatureError: Only the builder itself can tell the name of an image.
    """
    reader = _Reader(shown, arguments)
    escape = escape_of(text)
    for start, end, word in instructions_of(text, escape):
        if word in ("ARG", "FROM", "COPY", "RUN"):
            rest = _joined(text[start:end], escape).removeprefix("\ufeff").lstrip()[len(word) :].strip()
            reader.read(word, rest, text.count("\n", 0, start) + 1)
    return list(dict.fromkeys(reader.found))


class _Reader:
    """The arguments and stages that instructions leave to those that follow."""

    def __init__(self, shown: str, arguments: Mapping[str, str]) -> None:
        self.found: list[ExternalImage] = []
        self._shown = shown
        self._arguments = dict(arguments)
        self._stages = {"scratch"}
        self._has_stage = False

    def read(self, word: str, rest: str, line: int) -> None:
        # The library that splits words is loaded by whoever builds, and by nobody else.
        from benchflow.planes.sandbox.local.build.syntax import Mistake, Unsupported

        try:
            match word:
                case "ARG" if not self._has_stage:
                    self._declare(rest)
                case "FROM":
                    self._begin_stage(rest)
                case "COPY" | "RUN":
                    self._read_flags(rest)
        except Mistake:
            # No builder takes it, and the one that is asked says why.
            return
        except Unsupported as error:
            raise UnsupportedFeatureError(
                f"line {line}: an image has a name that only its builder can tell: {error.what}",
                file=self._shown,
                key=word,
                remedy="name the image in a FROM with $name, ${name} or ${name:-default}, and elsewhere the stage",
            ) from error

    def _declare(self, rest: str) -> None:
        from benchflow.planes.sandbox.local.build.syntax import Unsupported, words

        for word in words(rest):
            name, given, value = word.partition("=")
            try:
                if given:
                    self._arguments[name] = self._expand(value)
            except Unsupported:
                # It matters only where FROM uses it.
                self._arguments[name] = _UNKNOWN

    def _begin_stage(self, rest: str) -> None:
        from benchflow.planes.sandbox.local.build.syntax import flags, words

        self._has_stage = True
        given, rest = flags(rest)
        platform = next((self._expand(value) for name, value in given if name == "platform"), "")
        name, *more = words(rest) or [""]
        self._add(self._expand(name), platform or None)
        if len(more) == 2 and more[0].upper() == "AS":
            self._stages.add(more[1].lower())

    def _read_flags(self, rest: str) -> None:
        from benchflow.planes.sandbox.local.build.syntax import Unsupported, flags

        for flag, value in flags(rest)[0]:
            found = [value.strip("\"'")] if flag == "from" else _MOUNT_FROM.findall(value) if flag == "mount" else []
            for name in found:
                if "$" in name:
                    # Builders refuse variables here, too.
                    raise Unsupported(name)
                self._add(name, None)

    def _add(self, name: str, platform: str | None) -> None:
        from benchflow.planes.sandbox.local.build.syntax import Unsupported

        if _UNKNOWN in name:
            raise Unsupported("the value of an ARG")
        if name and not name.isdecimal() and name.lower() not in self._stages:
            self.found.append(ExternalImage(name, platform))

    def _expand(self, text: str) -> str:
        from benchflow.planes.sandbox.local.build.syntax import expand

        return expand(text, self._arguments, lambda name: None)


def _joined(span: str, escape: str) -> str:
    """Return an instruction in one line, without the comments and empty lines in it."""
    lines = [line.rstrip() for line in span.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return " ".join(line.removesuffix(escape) for line in lines)
