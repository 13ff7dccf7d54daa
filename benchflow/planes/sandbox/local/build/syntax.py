"""The syntax of Dockerfiles: instructions and words as `dockerfile-parse` reads them, and what it would misread.

The library joins continued lines, leaves comments out and splits words. Its gaps are closed here, or refused by name:
an instruction at the end of a file that has no line end, empty lines and doubled backslashes in continued lines, the
escape directive, here-documents, and substitutions other than `$name` and `${name}`.
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


class Mistake(Exception):
    """No builder could carry this out."""


class Unsupported(Exception):
    """Something valid that is not carried out here. what: its name. remedy: instead of using another sandbox."""

    def __init__(self, what: str, remedy: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.remedy = remedy


@dataclass(frozen=True)
class Instruction:
    """One instruction. line: its first, from 1. misread: what its lines have that nobody can be sure to read right."""

    line: int
    word: str
    rest: str
    misread: str | None = None


def instructions(text: str) -> list[Instruction]:
    """All instructions of a file, in order, comments left out."""
    lines = text.removeprefix("\ufeff").split("\n")
    doubtful = _mend(lines)
    # Without the empty line the library drops an instruction that the end of the file cuts short.
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
    """Make comments of the empty lines that continued instructions skip; what is doubtful, by line from 0."""
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
    """Refuse the parser directives that change how the file is to be read."""
    for line in text.removeprefix("\ufeff").split("\n"):
        match = _DIRECTIVE.fullmatch(line.strip())
        if match is None or match.group(1).lower() not in _DIRECTIVES:
            return
        name, value = match.group(1).lower(), match.group(2)
        if name == "escape" and value != "\\":
            raise Unsupported(f"# escape={value}", "write the file with backslashes")
        if name == "syntax" and not _FRONTEND.fullmatch(value):
            raise Unsupported(f"# syntax={value}")


def has_here_document(rest: str) -> bool:
    return any(_HERE_DOCUMENT.fullmatch(word) for word in words(rest))


def words(text: str) -> list[str]:
    """The words, separated by space outside of quotes, with their quotes."""
    return list(WordSplitter(text).split(dequote=False))


def flags(rest: str) -> tuple[list[tuple[str, str]], str]:
    """The leading `--name=value` words, values as they are written, and what follows them."""
    found = []
    while rest.startswith("--"):
        word, *more = WordSplitter(rest).split(maxsplit=1, dequote=False)
        rest = more[0].lstrip() if more else ""
        if word == "--":
            break
        name, _, value = word[2:].partition("=")
        found.append((name, value))
    return found, rest


def json_list(text: str) -> list[str] | None:
    """The words of the JSON form; None if this is the other form."""
    if not text.startswith("["):
        return None
    try:
        value, end = json.JSONDecoder().raw_decode(text)
    except (ValueError, RecursionError):
        return None
    if not all(isinstance(word, str) for word in value):
        raise Mistake("its JSON list has something that is not a string")
    if text[end:].strip():
        raise Mistake(f"after its JSON list there is more: {text[end:].strip()}")
    return list(value)


def expand(text: str, values: Mapping[str, str], unset: Callable[[str], None]) -> str:
    """A word without its quotes and escapes, variables replaced; `unset` is told those that count as empty."""
    return _expand(_UNQUOTED, text, values, unset)


def _expand(pattern: re.Pattern[str], text: str, values: Mapping[str, str], unset: Callable[[str], None]) -> str:
    done, at = [], 0
    while at < len(text):
        match = pattern.match(text, at)
        if match is None:
            raise Mistake(f"a quote is not closed: {text[at:]}")
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
    if match.group() == "$":
        return "$"
    braced = _BRACED.fullmatch(match.group("name") or match.group("braced") or "")
    if braced is None:
        raise Unsupported(
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
