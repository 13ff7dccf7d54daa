"""Sanitiser of text for display: replaces characters that could control a terminal, forge a line or deceive a reader.

Error messages, logs, names and agents' output come from sandboxes, models and task sets. Each passes one of these
functions before a terminal, a log or the Web UI shows it. Stored data are left as they are.

One character in, one character out: lengths, offsets and styles stay valid, and nothing is dropped silently. Escape
sequences are never interpreted, so there is no grammar in which an attacker could find a gap.
"""

from __future__ import annotations

import json
import re
import unicodedata
from typing import Any

SUBSTITUTE = "\N{REPLACEMENT CHARACTER}"
"""Replaces a character that has no picture of its own."""

MAX_MARKS = 8
"""Maximum number of combining marks on one character; further ones are replaced, since they run into other lines."""

_ESCAPE = "\N{SYMBOL FOR ESCAPE}"
_RETURN = "\N{SYMBOL FOR CARRIAGE RETURN}"

_VISIBLE_FORMATS = {*range(0x0600, 0x0606), 0x06DD, 0x070F, 0x0890, 0x0891, 0x08E2, 0x110BD, 0x110CD}
"""Format characters (Cf) that are visible: of Arabic, Syriac and Kaithi numbers and abbreviations."""

_INVISIBLE = {0x034F, 0x115F, 0x1160, 0x17B4, 0x17B5, 0x2065, 0x2800, 0x3164, 0xFFA0, *range(0xFFF0, 0xFFF9), 0x1D159}
"""Fillers and reserved code points that are in no category of controls but are drawn as nothing."""

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

# Only digits and punctuation as parameters, and few of them, so that no word can be hidden in a sequence.
_CONTROL_SEQUENCE = re.compile(r"\x1b\[[0-?]{0,16}[ -/]{0,2}[@-~]")
_OVERWRITTEN = re.compile(r"\r+(?!\n)")


class _Characters(dict[int, str]):
    """Translation table to the substitute of each character, filled on first use."""

    def __missing__(self, code: int) -> str:
        self[code] = made = _replace_character(code)
        return made


class _Marks(dict[int, str]):
    """Translation table of combining marks to `m`, and of all else to `x`."""

    def __missing__(self, code: int) -> str:
        self[code] = made = "m" if unicodedata.category(chr(code)) in ("Mn", "Me") else "x"
        return made


class _JsonCharacters(dict[int, str]):
    """Translation table to JSON escapes for characters that `sanitise` may replace."""

    def __missing__(self, code: int) -> str:
        char = chr(code)
        if _replace_character(code) != char or _HAS_CONTEXT.match(char):
            units = char.encode("utf-16-be", "surrogatepass")
            char = "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
        self[code] = char
        return char


def _replace_character(code: int) -> str:
    """Return the visible substitute of a character, or the character itself."""
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

    Replaced are controls (C0 except line feeds and tabs, DEL, C1), bidirectional controls, line and paragraph
    separators, lone surrogates, and invisible characters. Joiners and variation selectors stay where a script or an
    emoji needs them; of combining marks at most `MAX_MARKS` stay in a row. The result is as long as the text. The
    function is idempotent.
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
    """Return a value of one line (a name, a cell) sanitised, with line feeds made visible and tabs as blanks."""
    found = sanitise(text)
    return found if found.isprintable() else found.translate(_LINE)


def sanitise_log(text: object) -> str:
    """Return the output of a program: sanitised, and readable where it has colours or a progress bar.

    Each sequence that sets a colour or moves the cursor becomes one sign; text that a carriage return would overwrite
    is on a line of its own. Unlike `sanitise`, it changes the length.
    """
    found = text if isinstance(text, str) else str(text)
    if "\x1b" in found:
        found = _CONTROL_SEQUENCE.sub(_ESCAPE, found)
    if "\r" in found:
        found = _OVERWRITTEN.sub(f"{_RETURN}\n", re.sub(r"\r+\n", "\n", found))
    return sanitise(found)


def dump_sanitised_json(value: Any, *, indent: int | None = None) -> str:
    """Return a value as JSON that parses to the same data and is harmless on a terminal.

    Text of any script stays readable; every character that `sanitise` could replace is escaped.
    """
    return json.dumps(value, indent=indent, ensure_ascii=False).translate(_JSON_CHARACTERS)


_PROSE = re.compile(r"(?:[^\W_]|[ ,.()·×/-]|:(?!//))*")


def sanitise_markdown(text: object) -> str:
    """Return a value of one line for Markdown, free of markup, HTML and links.

    A text that may contain any is put into a code span, in which nothing is interpreted.
    """
    line = sanitise_line(text)
    if _PROSE.fullmatch(line) and "www." not in line.casefold():
        return line
    # Backslashes do not escape in a code span, so backticks are replaced; `|` would end a table's cell even there.
    return "`" + line.replace("`", "'").replace("|", "\N{BROKEN BAR}") + "`"
