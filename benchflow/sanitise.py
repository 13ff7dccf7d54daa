"""Replace every character of a text that could steer a terminal, forge a line or deceive its reader.

Error messages, logs, names and what agents say come out of sandboxes, models and task sets. Each passes one of these
functions before a terminal, a log or the Web UI shows it. Stored data are left as they are: this is about display.

One character in, one character out: lengths, offsets and styles stay valid, and nothing is dropped silently. Whole
escape sequences are never parsed for their effect, so there is no grammar that an attacker could be ahead of.
"""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any

SUBSTITUTE = "\N{REPLACEMENT CHARACTER}"
"""Stands for a character without a picture of its own."""

MAX_MARKS = 8
"""Combining marks on one character, beyond which they are replaced: more of them run into the lines around."""

_ESCAPE = "\N{SYMBOL FOR ESCAPE}"
_RETURN = "\N{SYMBOL FOR CARRIAGE RETURN}"

_VISIBLE_FORMATS = {*range(0x0600, 0x0606), 0x06DD, 0x070F, 0x0890, 0x0891, 0x08E2, 0x110BD, 0x110CD}
"""Format characters (Cf) with a shape, of Arabic, Syriac and Kaithi numbers and abbreviations."""

_INVISIBLE = {0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2065, 0x2800, 0x3164, 0xFFA0, *range(0xFFF0, 0xFFF9), 0x1D159}
"""Fillers and reserved code points that take part in no category of controls and are drawn as nothing."""

_TAGS = range(0xE0000, 0xE1000)
_IDEOGRAPHIC_SELECTORS = range(0xE0100, 0xE01F0)

_JOINERS = "\u200c\u200d"
_SELECTORS = "\u180b-\u180d\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef"
_JOINED = (
    "\u0620-\u06d3\u06fa-\u06ff\u0710-\u08c7\u0900-\u109f\u1780-\u17b3\u17b6-\u17ff\u1820-\u18aa\u1900-\u1cff"
    "\u2190-\u2bff\ufe0f\U0001f000-\U0001faff"
)
"""Letters of scripts that are written with joiners, and symbols that make up joined emoji."""
_SELECTED = (
    "#*0-9\u00a9\u00ae\u1000-\u109f\u1807\u1820-\u18aa\u203c-\u3299\u3400-\u9fff\ua840-\ua87f\uf900-\ufaff"
    "\U0001f000-\U0001faff\U00020000-\U0003ffff"
)
"""Characters that have variants: symbols, emoji, ideographs, Myanmar, Mongolian and Phags-pa letters."""

_MISPLACED = re.compile(f"(?<![{_SELECTED}])[{_SELECTORS}]")
_UNJOINED = re.compile(f"(?<![{_JOINED}])[{_JOINERS}]|[{_JOINERS}](?![{_JOINED}])")
_HAS_CONTEXT = re.compile(f"[{_JOINERS}{_SELECTORS}]")
_FLOOD = re.compile(f"(?<={'m' * MAX_MARKS})m+")

# The parameters are digits and punctuation, so that no word can be hidden in one; and it is short.
_CONTROL_SEQUENCE = re.compile(r"\x1b\[[0-?]{0,16}[ -/]{0,2}[@-~]")
_OVERWRITTEN = re.compile(r"\r+(?!\n)")


class _Characters(dict[int, str]):
    """What each character is replaced by, worked out when it is first met."""

    def __missing__(self, code: int) -> str:
        self[code] = made = _replacement(code)
        return made


class _Marks(dict[int, str]):
    """`m` for a combining mark, and `x` for anything else."""

    def __missing__(self, code: int) -> str:
        self[code] = made = "m" if unicodedata.category(chr(code)) in ("Mn", "Me") else "x"
        return made


class _JsonCharacters(dict[int, str]):
    """The escapes of JSON for the characters that no display shows."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        if _replacement(code) != char or _HAS_CONTEXT.match(char):
            units = char.encode("utf-16-be", "surrogatepass")
            char = "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
        self[code] = char
        return char


def _replacement(code: int) -> str:
    char = chr(code)
    if char in "\n\t":
        return char
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\N{SYMBOL FOR DELETE}"
    if code < 0x7F:
        return char
    category = unicodedata.category(char)
    if category in ("Cc", "Zl", "Zp", "Cs"):
        return SUBSTITUTE
    if char in _JOINERS or code in _IDEOGRAPHIC_SELECTORS:
        return char
    if code in _INVISIBLE or code in _TAGS or (category == "Cf" and code not in _VISIBLE_FORMATS):
        return SUBSTITUTE
    return char


_CHARACTERS = _Characters()
_JSON_CHARACTERS = _JsonCharacters()
_MARKS = _Marks()
_LINE = str.maketrans({"\n": "\N{SYMBOL FOR NEWLINE}", "\t": " "})


def sanitise(text: object) -> str:
    """Return a text of several lines with a visible substitute for each character that is not plainly shown.

    Replaced are controls (C0 but for line ends and tabs, DEL, C1), controls of the writing direction, separators of
    lines and paragraphs, halves of surrogate pairs, and invisible characters. Joiners and variation selectors stay
    where a script or an emoji needs them; of combining marks no more than `MAX_MARKS` stay in a row. The result is as
    long as the text, and is returned unchanged when it is sanitised again.
    """
    found = text if isinstance(text, str) else str(text)
    if found.isascii():
        return found if found.isprintable() else found.translate(_CHARACTERS)
    found = found.translate(_CHARACTERS)
    if _HAS_CONTEXT.search(found):
        found = _UNJOINED.sub(SUBSTITUTE, _MISPLACED.sub(SUBSTITUTE, found))
    kinds = found.translate(_MARKS)
    for flood in _FLOOD.finditer(kinds):
        found = found[: flood.start()] + SUBSTITUTE * len(flood.group()) + found[flood.end() :]
    return found


def sanitise_line(text: object) -> str:
    """Return a name, a cell or another value of one line, with line ends made visible, too."""
    found = sanitise(text)
    return found if found.isprintable() else found.translate(_LINE)


def sanitise_log(text: object) -> str:
    """Return the output of a program: sanitised, and readable where it drew colours or a progress bar.

    Each sequence that colours text or moves the cursor becomes a single sign; what a carriage return would have
    overwritten stands in a line of its own.
    """
    found = text if isinstance(text, str) else str(text)
    if "\x1b" in found:
        found = _CONTROL_SEQUENCE.sub(_ESCAPE, found)
    if "\r" in found:
        found = _OVERWRITTEN.sub(f"{_RETURN}\n", re.sub(r"\r+\n", "\n", found))
    return sanitise(found)


def sanitised_json(value: Any, *, indent: int | None = None) -> str:
    """Return a value as JSON: the same data for whoever parses it, and harmless on a terminal.

    Text of any script stays readable; every character that `sanitise` could replace is escaped.
    """
    return json.dumps(value, indent=indent, ensure_ascii=False).translate(_JSON_CHARACTERS)


_PROSE = re.compile(r"(?:[^\W_]|[ ,.()·×/-]|:(?!//))*")


def sanitised_markdown(text: object) -> str:
    """Return a value of one line for Markdown, with no markup, HTML or link in it.

    Anything that could be read as such stands in a code span, inside of which nothing is interpreted.
    """
    line = sanitise_line(text)
    if _PROSE.fullmatch(line) and "www." not in line.casefold():
        return line
    # Neither would a backslash escape them inside of a code span, nor is a table's cell ended by another bar.
    return "`" + line.replace("`", "'").replace("|", "\N{BROKEN BAR}") + "`"
