"""Split a shell script into words and operators: quotes, comments, here-documents, and parts known only at run time.

Its time is linear in the script's length. tree-sitter-bash 0.25 would save about 160 lines, but a hostile pipeline of
200 kB keeps it busy for more than a minute, during which its parser lets no other thread run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_OPERATOR = re.compile(r"&>>|&>|\d*(?:<<<|<<-|<<|<&|<>|>>|>\||>&|>|<)|&&|\|\||;;|\|&|[;&|()\n]")
NAME = re.compile(r"[A-Za-z_]\w*|[0-9@*#?!$-]")
"""Pattern of the name of a variable, special parameters included."""


@dataclass(frozen=True)
class Part:
    """A part of a word: `text`, the `value` of a variable (`x`, `x:-y`), or the output of a `script`."""

    kind: str
    text: str


Word = tuple[Part, ...]


@dataclass
class Here:
    """A here-document, whose text follows the line of its operator."""

    end: str
    """Delimiter line."""

    is_literal: bool
    """Whether the delimiter is quoted, so that variables are not expanded."""

    strips_tabs: bool
    """Whether its operator is `<<-`."""

    text: str = ""


Token = str | Word | Here


class Lexer:
    """Lexer of one shell script, to be read once. It never fails: it makes the best of invalid input."""

    def __init__(self, text: str) -> None:
        """Make it for a script."""
        self.text, self.at = text, 0
        self.tokens: list[Token] = []
        self._waiting: list[Here] = []

    def read(self) -> list[Token]:
        """Return all words, operators and here-documents of the script, in order."""
        text = self.text
        while self.at < len(text):
            char = text[self.at]
            if char in " \t\r" or text.startswith("\\\n", self.at):
                self.at += 2 if char == "\\" else 1
            elif char == "#":
                self.at = _find(text, "\n", self.at)
            elif text.startswith(("<(", ">("), self.at):
                self.tokens.append((self._substitution(self.at + 2),))
            elif operator := _OPERATOR.match(text, self.at):
                self.at = operator.end()
                self._operator(operator[0])
            else:
                self.tokens.append(self._word())
        return self.tokens

    def _operator(self, operator: str) -> None:
        operator = operator.lstrip("0123456789")
        self.tokens.append(operator)
        if operator == "\n":
            for here in self._waiting:
                self._body(here)
            self._waiting = []
        elif operator in ("<<", "<<-"):
            while self.text[self.at : self.at + 1] in (" ", "\t"):
                self.at += 1
            began = self.at
            end = "".join(part.text for part in self._word())
            quoted = any(char in self.text[began : self.at] for char in "'\"\\")
            here = Here(end, quoted, operator.endswith("-"))
            self.tokens.append(here)
            self._waiting.append(here)

    def _body(self, here: Here) -> None:
        """Read the lines of a here-document up to its delimiter."""
        lines = []
        while self.at < len(self.text):
            end = _find(self.text, "\n", self.at)
            line = self.text[self.at : end]
            self.at = end + 1
            if (line.lstrip("\t") if here.strips_tabs else line) == here.end:
                break
            lines.append(line)
        here.text = "\n".join(lines) + "\n"

    def _word(self) -> Word:
        text, parts = self.text, list[Part]()
        while self.at < len(text) and text[self.at] not in " \t\r\n;&|()<>":
            char = text[self.at]
            if char == "'":
                end = _find(text, "'", self.at + 1)
                parts.append(Part("text", text[self.at + 1 : end]))
                self.at = end + 1
            elif char == '"':
                self.at += 1
                parts += self._quoted()
            elif char == "\\":
                parts.append(Part("text", text[self.at + 1 : self.at + 2].replace("\n", "")))
                self.at += 2
            elif char in "$`":
                parts.append(self._dollar())
            else:
                parts.append(Part("text", char))
                self.at += 1
        return tuple(parts) or (Part("text", ""),)

    def _quoted(self) -> list[Part]:
        """Read the rest of a double-quoted string, behind its opening quote."""
        text, parts = self.text, list[Part]()
        while self.at < len(text) and text[self.at] != '"':
            if text[self.at] == "\\" and text[self.at + 1 : self.at + 2] in ("$", "`", '"', "\\", "\n"):
                parts.append(Part("text", text[self.at + 1].replace("\n", "")))
                self.at += 2
            elif text[self.at] in "$`":
                parts.append(self._dollar())
            else:
                parts.append(Part("text", text[self.at]))
                self.at += 1
        self.at += 1
        return parts

    def _dollar(self) -> Part:
        """Read the expansion at a `$` or a backquote."""
        text, at = self.text, self.at
        if text[at] == "`":
            end = _find(text, "`", at + 1)
            self.at = end + 1
            return Part("script", text[at + 1 : end])
        if text.startswith("$(", at) and not text.startswith("$((", at):
            return self._substitution(at + 2)
        if text.startswith("${", at):
            inner = self._closed(at + 2, "{", "}")
            name = NAME.match(inner)
            return Part("value", inner) if name else Part("text", text[at : self.at])
        name = NAME.match(text, at + 1)
        self.at = name.end() if name else at + 1
        return Part("value", name[0]) if name else Part("text", "$")

    def _substitution(self, begin: int) -> Part:
        return Part("script", self._closed(begin, "(", ")"))

    def _closed(self, begin: int, opens: str, closes: str) -> str:
        """Read the text up to the matching closing bracket; brackets in quotes do not count."""
        depth, at, quote = 1, begin, ""
        while at < len(self.text):
            char = self.text[at]
            if char == "\\":
                at += 1
            elif quote:
                quote = "" if char == quote else quote
            elif char in "'\"":
                quote = char
            elif char in (opens, closes):
                depth += 1 if char == opens else -1
                if not depth:
                    break
            at += 1
        self.at = at + 1
        return self.text[begin:at]


def _find(text: str, mark: str, at: int) -> int:
    """Return the index of a mark at or after `at`; the length of the text if there is none."""
    found = text.find(mark, at)
    return len(text) if found < 0 else found
