"""The syntax of Dockerfiles: instructions and words as `dockerfile-parse` reads them, and corrections of its errors.

The library joins continued lines, leaves comments out and splits words. What it misreads is corrected here, or refused
by name: an instruction at the end of a file without a newline, empty lines and doubled backslashes in continued lines,
the escape directive, here-documents, and substitutions other than `$name` and `${name}`.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dockerfile_parse import DockerfileParser  # type: ignore[import-untyped]
from dockerfile_parse.constants import COMMENT_INSTRUCTION  # type: ignore[import-untyped]
from dockerfile_parse.util import WordSplitter  # type: ignore[import-untyped]

_DIRECTIVE = re.compile(r"#\s*([a-z][a-z0-9]*)\s*=\s*(.+)", re.I)
_DIRECTIVES = ("syntax", "escape", "check")
_FRONTEND = re.compile(r"(docker\.io/)?docker/dockerfile(-upstream)?(:[\w.-]+)?(@sha256:[0-9a-f]+)?")
_HERE_DOCUMENT = re.compile(r"\d*<<-?[^<]+", re.S)

_VARIABLE = r"\$(?:(?P<name>[A-Za-z_]\w*)|\{(?P<braced>[^{}]*)\}|(?P<other>[{@*#?$!0-9-])|)"
_UNQUOTED = re.compile(
    r"\\(?P<escaped>.?)|'(?P<single>[^']*)'|\"(?P<double>(?:\\.|[^\"\\])*)\"|" + _VARIABLE + r"|(?P<plain>[^\\'\"$]+)",
    re.S | re.A,
)
_QUOTED = re.compile(r"\\(?P<escaped>[\"$\\])|" + _VARIABLE + r"|(?P<plain>\\|[^\\$]+)", re.S | re.A)
_BRACED = re.compile(r"([A-Za-z_]\w*)(?:(:?)([-+])(.*))?", re.S | re.A)


class SyntaxMistakeError(Exception):
    """An error in a Dockerfile, which no builder could carry out."""


class UnsupportedSyntaxError(Exception):
    """A valid part of a Dockerfile that is not supported here.

    Args:
        what: Name of the part.
        remedy: Advice other than to use another sandbox; None for none.
    """

    def __init__(self, what: str, remedy: str | None = None) -> None:
        """Make it."""
        super().__init__(what)
        self.what = what
        self.remedy = remedy


@dataclass(frozen=True)
class Instruction:
    """An instruction of a Dockerfile."""

    line: int
    """Its first line, from 1."""
    word: str
    """Name of the instruction, such as RUN."""
    rest: str
    """Text after the name, with continued lines joined."""
    misread: str | None = None
    """A part of its lines that the library may misread; None if there is none."""


def parse_instructions(text: str) -> list[Instruction]:
    """Return all instructions of a Dockerfile's text, in order, without comments."""
    lines = text.removeprefix("\ufeff").split("\n")
    doubtful = _mend(lines)
    # Without the empty lines the library drops a continued instruction at the end of the file.
    parser = DockerfileParser(fileobj=io.BytesIO("\n".join([*lines, "", ""]).encode()), env_replace=False)
    found = []
    for entry in parser.structure:
        if entry["instruction"] == COMMENT_INSTRUCTION and lines[entry["startline"]].lstrip().startswith("#"):
            continue
        reasons = [doubtful[line] for line in range(entry["startline"], entry["endline"] + 1) if line in doubtful]
        found.append(
            Instruction(
                entry["startline"] + 1,
                entry["instruction"],
                entry["value"].strip(),
                reasons[0] if reasons else None,
            )
        )
    return found


def _mend(lines: list[str]) -> dict[int, str]:
    """Replace empty lines within continued instructions by comments, in place.

    Returns:
        Syntax that the library may misread, by line number from 0.
    """
    doubtful = {}
    continued = False
    for number, line in enumerate(lines):
        if line.lstrip().startswith("#"):
            continue
        if not line.strip():
            if continued:
                lines[number] = "#"
            continue
        continued = line.rstrip().endswith("\\")
        if line.rstrip().endswith("\\\\"):
            doubtful[number] = "a line that ends with two backslashes"
        elif continued and not line.rstrip(" \t\r").endswith("\\"):
            doubtful[number] = "a backslash before an unusual space at the end of a line"
    return doubtful


def check_directives(text: str) -> None:
    """Raise `UnsupportedSyntaxError` for parser directives that change how the file is to be read."""
    for line in text.removeprefix("\ufeff").split("\n"):
        match = _DIRECTIVE.fullmatch(line.strip())
        if match is None or match.group(1).lower() not in _DIRECTIVES:
            return
        name, value = match.group(1).lower(), match.group(2)
        if name == "escape" and value != "\\":
            raise UnsupportedSyntaxError(f"# escape={value}", "write the file with backslashes")
        if name == "syntax" and not _FRONTEND.fullmatch(value):
            raise UnsupportedSyntaxError(f"# syntax={value}")


def has_here_document(rest: str) -> bool:
    """Return whether the text of an instruction begins a here-document."""
    return any(_HERE_DOCUMENT.fullmatch(word) for word in split_words(rest))


def split_words(text: str) -> list[str]:
    """Split text at spaces outside of quotes, and return the words with their quotes."""
    return list(WordSplitter(text).split(dequote=False))


def parse_flags(rest: str) -> tuple[list[tuple[str, str]], str]:
    """Return the leading `--name=value` words, values unexpanded, and the text after them."""
    found = []
    while rest.startswith("--"):
        word, *more = WordSplitter(rest).split(maxsplit=1, dequote=False)
        rest = more[0].lstrip() if more else ""
        if word == "--":
            break
        name, _, value = word[2:].partition("=")
        found.append((name, value))
    return found, rest


def parse_json_list(text: str) -> list[str] | None:
    """Return the words of the JSON form; None for the shell form. Raise `SyntaxMistakeError` for other JSON."""
    if not text.startswith("["):
        return None
    try:
        value, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return None
    if not all(isinstance(word, str) for word in value):
        raise SyntaxMistakeError("its JSON list has something that is not a string")
    if text[end:].strip():
        raise SyntaxMistakeError(f"after its JSON list there is more: {text[end:].strip()}")
    return list(value)


def expand(text: str, values: Mapping[str, str], unset: Callable[[str], None]) -> str:
    """Return a word without quotes and escapes, with variables replaced.

    Args:
        text: The word.
        values: The variables.
        unset: Callback with the name of each variable that is unset, and so replaced by nothing.

    Raises:
        SyntaxMistakeError: A quote is not closed.
        UnsupportedSyntaxError: A substitution has another form than `$name`, `${name}`, `${name:-word}` and the like.
    """
    return _expand(_UNQUOTED, text, values, unset)


def _expand(pattern: re.Pattern[str], text: str, values: Mapping[str, str], unset: Callable[[str], None]) -> str:
    """Replace the tokens of `pattern` in a text, as `expand`."""
    done, at = [], 0
    while at < len(text):
        match = pattern.match(text, at)
        if match is None:
            raise SyntaxMistakeError(f"a quote is not closed: {text[at:]}")
        at = match.end()
        part = match.groupdict()
        if part.get("double") is not None:
            done.append(_expand(_QUOTED, part["double"], values, unset))
        elif match.group().startswith("$"):
            done.append(_substitute(match, values, unset))
        else:
            done.append(next((part[kind] for kind in ("escaped", "single", "plain") if part.get(kind) is not None), ""))
    return "".join(done)


def _substitute(match: re.Match[str], values: Mapping[str, str], unset: Callable[[str], None]) -> str:
    """Return the value of one variable substitution, as `expand`."""
    if match.group() == "$":
        return "$"
    braced = _BRACED.fullmatch(match.group("name") or match.group("braced") or "")
    if braced is None:
        raise UnsupportedSyntaxError(
            f"the substitution {match.string[match.start() :]}", "write it with $name, ${name} or ${name:-default}"
        )
    name, colon, sign, word = braced.groups()
    counts = bool(values.get(name)) if colon else name in values
    if sign == "+":
        return expand(word, values, unset) if counts else ""
    if sign == "-" and not counts:
        return expand(word, values, unset)
    if name not in values:
        unset(name)
    return values.get(name, "")
