"""Read a shell script without running it: its simple commands as words, with their redirections.

It knows quotes, comments, here-documents, variables and functions that the script itself sets, `cd` and loops; an
unknown part stays in the word as it is written. All branches are taken, and one round of each loop; wrappers such as
`sudo` and `timeout` are left out.
"""

from __future__ import annotations

import itertools
import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchflow.planes.reward.action.lexer import NAME, Here, Lexer, Token, Word

LONGEST = 200_000
"""Maximum number of characters of a script that are read."""

_MOST = 2_000
"""Maximum number of commands."""

_DEEPEST = 6
"""Maximum depth of nested scripts and function calls."""

_EFFORT = 2_000_000
"""Maximum number of tokens read and characters expanded: a script may be written to grow without end."""

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*\+?=")
_RESERVED = frozenset(
    ("if", "then", "else", "elif", "fi", "do", "done", "while", "until", "case", "esac", "{", "}", "!", "time")
)
_VALUED = {  # Wrappers, with the letters of their options that have a value.
    "sudo": "ughpCDRT",
    "env": "uCS",
    "timeout": "ks",
    "nice": "n",
    "ionice": "cn",
    "stdbuf": "ioe",
    "xargs": "IinLPsda",
    "exec": "a",
    "nohup": "",
    "setsid": "",
    "command": "",
    "builtin": "",
    "doas": "u",
}


@dataclass(frozen=True)
class ShellCommand:
    """A simple command of a shell script."""

    words: tuple[str, ...]
    """Words without quotes; the first is the name."""

    cwd: str
    """Directory in which it runs."""

    reads: tuple[str, ...] = ()
    """Files that its stdin is redirected from."""

    writes: tuple[str, ...] = ()
    """Files that it is redirected to with `>`."""

    appends: tuple[str, ...] = ()
    """Files that it is redirected to with `>>`."""

    stdin: str | None = None
    """Text of its here-document or here-string; None if it has none."""

    @property
    def name(self) -> str:
        """Return the name of the program, without its directory; empty for redirections alone."""
        return posixpath.basename(self.words[0]) if self.words else ""

    @property
    def text(self) -> str:
        """Return the command on one line, without quotes, with its redirections."""
        after = [f"> {path}" for path in self.writes] + [f">> {path}" for path in self.appends]
        return " ".join([*self.words, *(f"< {path}" for path in self.reads), *after])


def read_script(text: str, cwd: str = "/") -> list[ShellCommand]:
    """Return the commands of a script in the order of its text; those of a substitution precede the one around it.

    Never fails: of invalid input, it reads as much as it can.

    Args:
        text: The script.
        cwd: Directory in which it starts.
    """
    run = _Run(cwd)
    run.script(text[:LONGEST], 0)
    return run.commands


@dataclass
class _Building:
    """A simple command that is being read."""

    words: list[str] = field(default_factory=list)
    reads: list[str] = field(default_factory=list)
    writes: list[str] = field(default_factory=list)
    appends: list[str] = field(default_factory=list)
    stdin: str | None = None


class _Run:
    """State of a script that is followed without being run: directory, variables, functions and commands."""

    def __init__(self, cwd: str) -> None:
        self.cwd = cwd
        self.commands: list[ShellCommand] = []
        self.values: dict[str, str] = {}
        self.functions: dict[str, list[Token]] = {}
        self.effort = 0

    def script(self, text: str, depth: int) -> None:
        """Follow a script; one that is nested too deeply is left out."""
        if depth <= _DEEPEST:
            self.tokens(Lexer(text).read(), depth)

    def tokens(self, tokens: Sequence[Token], depth: int) -> None:
        """Follow the tokens of a script, or of a function's body."""
        command, at, outer = _Building(), 0, list[str]()
        while at < len(tokens) and len(self.commands) < _MOST and self.effort < _EFFORT:
            self.effort += 1
            token = tokens[at]
            following = tokens[at + 1] if at + 1 < len(tokens) else None
            at += 1
            if isinstance(token, Here):
                continue
            if not isinstance(token, str):
                if not command.words and (body := self._definition(tokens, at - 1)):
                    at = body
                else:
                    self._take(command, self._text(token, depth))
            elif token.startswith(("<", ">", "&>")):
                at += self._redirect(command, token, following, depth)
            else:
                self._end(command, depth)
                command = _Building()
                if token == "(":
                    outer.append(self.cwd)
                elif token == ")" and outer:
                    self.cwd = outer.pop()
        self._end(command, depth)

    def _definition(self, tokens: Sequence[Token], at: int) -> int:
        """Record the function that is defined at a token, and return the index after it; 0 for no definition."""
        name = _plain(tokens[at])
        if name == "function" and at + 1 < len(tokens):
            at += 1
            name = _plain(tokens[at])
        elif list(tokens[at + 1 : at + 3]) != ["(", ")"]:
            return 0
        at += 3 if list(tokens[at + 1 : at + 3]) == ["(", ")"] else 1
        while at < len(tokens) and tokens[at] == "\n":
            at += 1
        if not name or at >= len(tokens) or _plain(tokens[at]) != "{":
            return 0
        begin, depth = at + 1, 0
        while at < len(tokens):
            depth += {"{": 1, "}": -1}.get(_plain(tokens[at]) or "", 0)
            if not depth:
                break
            at += 1
        self.functions[name] = list(tokens[begin:at])
        return at + 1

    def _take(self, command: _Building, word: str) -> None:
        """Append a word to a command; of the list of a `for` loop, only the first one, which is its one round."""
        if command.words and command.words[0] == "for" and len(command.words) > 3:
            return
        command.words.append(word)

    def _redirect(self, command: _Building, operator: str, target: Token | None, depth: int) -> int:
        """Add a redirection to a command, and return the number of tokens of its target."""
        if target is None or isinstance(target, str):
            return 0
        if isinstance(target, Here):
            command.stdin = target.text if target.is_literal else self._filled(target.text)
            return 1
        text = self._text(target, depth)
        if operator == "<<<":
            command.stdin = text
        elif operator in ("<", "<>"):
            command.reads.append(text)
        elif operator in (">>", "&>>"):
            command.appends.append(text)
        elif operator in (">", ">|", "&>") or (operator == ">&" and not text.isdigit() and text != "-"):
            command.writes.append(text)
        return 1

    def _end(self, command: _Building, depth: int) -> None:
        """Finish a command: record it, and follow its effects on variables, functions and the directory."""
        words = list(itertools.dropwhile(_RESERVED.__contains__, command.words))
        if words[:1] == ["for"]:
            if len(words) > 3 and words[2] == "in":
                self.values[words[1]] = words[3]
            return
        for word in itertools.takewhile(_ASSIGNMENT.match, words):
            name, _, value = word.partition("=")
            self.values[name.rstrip("+")] = value
        words = list(itertools.dropwhile(_ASSIGNMENT.match, words))
        if words[:1] in (["export"], ["local"], ["readonly"], ["declare"]):
            self.values |= {word.partition("=")[0]: word.partition("=")[2] for word in words[1:] if "=" in word}
        words = unwrapped(words)
        if words and words[0] in self.functions and depth <= _DEEPEST:
            self._call(words, depth)
            return
        # In `[[ … ]]`, `<` and `>` compare.
        plain = _Building() if words[:1] == ["[["] else command
        reads, writes, appends = tuple(plain.reads), tuple(plain.writes), tuple(plain.appends)
        if words or reads or writes or appends:
            self.commands.append(ShellCommand(tuple(words), self.cwd, reads, writes, appends, plain.stdin))
        if words[:1] in (["cd"], ["pushd"]) and len(words) > 1:
            self.cwd = resolved(words[-1], self.cwd)

    def _call(self, words: list[str], depth: int) -> None:
        """Follow the body of a function with its arguments."""
        outer = self.values
        given = {str(place): word for place, word in enumerate(words)}
        self.values = outer | {"1": "", "2": "", "3": "", "4": ""} | given | {"@": " ".join(words[1:])}
        self.tokens(self.functions[words[0]], depth + 1)
        self.values = outer

    def _text(self, word: Word, depth: int) -> str:
        """Return the text of a word with its variables expanded; a substitution is followed, and becomes `$()`."""
        found, length = list[str](), 0
        for part in word:
            if part.kind == "script":
                self.script(part.text, depth + 1)
                found.append("$()")
            else:
                found.append(part.text if part.kind == "text" else self._value(part.text, depth))
            length += len(found[-1])
            self.effort += len(found[-1])
            if length > LONGEST or self.effort > _EFFORT:
                break
        return "".join(found)[:LONGEST]

    def _value(self, inner: str, depth: int) -> str:
        """Return the value of a variable's expansion; `$NAME` if it is not known."""
        name = NAME.match(inner)
        assert name is not None
        value, rest = self.values.get(name[0]), inner[name.end() :]
        wanted = bool(value) if rest.startswith((":+", "+")) else not value and rest.startswith((":-", "-", ":=", "="))
        if wanted and depth <= _DEEPEST:
            words = [token for token in Lexer(rest.lstrip(":")[1:]).read() if isinstance(token, tuple)]
            return " ".join(self._text(word, depth + 1) for word in words)
        if rest.startswith((":+", "+")):
            return "" if value is not None else f"${{{inner}}}"
        return f"${name[0]}" if value is None else value

    def _filled(self, text: str) -> str:
        """Return a text with its known variables expanded."""

        def value(name: re.Match[str]) -> str:
            found = name[0] if self.effort > _EFFORT else self.values.get(name[1], name[0])
            self.effort += len(found)
            return found

        return re.sub(r"\$\{?(\w+)\}?", value, text)[:LONGEST]


def _plain(token: Token | None) -> str | None:
    """Return the text of a word without expansions; None for any other token."""
    if isinstance(token, tuple) and all(part.kind == "text" for part in token):
        return "".join(part.text for part in token)
    return None


def unwrapped(words: list[str]) -> list[str]:
    """Return the words of a command without its wrappers: of `sudo -u app timeout 5 rm x`, `rm x`."""
    begin = 0
    while (valued := _VALUED.get(wrapper := posixpath.basename(words[begin]) if words else "")) is not None:
        at = begin + 1
        while at < len(words) and (words[at].startswith("-") or (wrapper == "env" and "=" in words[at])):
            option = words[at]
            at += 2 if len(option) == 2 and option[1] in valued else 1
        at += wrapper == "timeout"
        if at >= len(words):
            break
        begin = at
    return words[begin:]


def resolved(path: str, cwd: str) -> str:
    """Return a path as absolute and normal, without a leading `/proc/PID/root` or `/proc/PID/cwd`.

    Args:
        path: Path, relative or absolute.
        cwd: Directory to which a relative path refers.
    """
    whole = posixpath.normpath(posixpath.join(cwd or "/", path))
    whole = re.sub(r"^/proc/(?:self|thread-self|\d+)/(?:root|cwd)(?=/|$)", "", whole) or "/"
    return "/" + whole.lstrip("/") if whole.startswith("/") else whole
