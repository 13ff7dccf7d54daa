"""Find the files and requests that Python code touches, without running it.

Only calls whose arguments can be read from the source text are found.
"""

from __future__ import annotations

import ast
import json
import shlex
import warnings
from collections.abc import Sequence

from benchflow.planes.reward.action.shell_reader import LONGEST, resolved
from benchflow.planes.reward.action.touched import Access, AccessMode, Touched, TouchedRequest, add_scheme

_MAX_EXPRESSIONS = 20_000
"""Maximum number of expressions to evaluate: code may be written so that they expand without end."""

_UNKNOWN = "{}"
"""Placeholder in a text for a part that is known only at run time."""

_OF_A_PATH: dict[str, AccessMode] = {
    "read_text": "read",
    "read_bytes": "read",
    "write_text": "write",
    "write_bytes": "write",
    "unlink": "delete",
}
"""Modes of the methods of a `Path`."""

_OF_TWO: dict[str, tuple[AccessMode, AccessMode]] = {
    **dict.fromkeys(("shutil.copy", "shutil.copy2", "shutil.copyfile", "shutil.copytree"), ("read", "write")),
    **dict.fromkeys(("shutil.move", "os.rename", "os.replace"), ("delete", "write")),
    **dict.fromkeys(("os.symlink", "os.link"), ("read", "write")),
}
"""Modes of the first and the second argument of functions on two files."""

_OF_ONE: dict[str, AccessMode] = {
    **dict.fromkeys(("os.remove", "os.unlink", "shutil.rmtree", "os.rmdir"), "delete"),
    "runpy.run_path": "run",
}
"""Modes of functions on one file."""

_RUNS = {f"subprocess.{name}" for name in ("run", "call", "check_call", "check_output", "Popen")} | {
    "os.system",
    "os.popen",
}
_METHODS = ("get", "post", "put", "patch", "delete", "head")


def read_python(code: str, cwd: str = "/") -> Touched:
    """Return what Python code touches; nothing if it is not valid Python.

    Args:
        code: Source text, of which the first `LONGEST` characters are read.
        cwd: Directory to which relative paths refer.
    """
    reading = _Reading(cwd)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(code[:LONGEST])
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
                reading.names.setdefault(node.targets[0].id, node.value)
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                reading.read_call(node)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        pass
    return reading.touched


class _Reading:
    """Evaluates the calls of one source text, and collects what they touch."""

    def __init__(self, cwd: str) -> None:
        self.cwd = cwd
        self.names: dict[str, ast.expr] = {}
        self.touched = Touched()
        self.effort = 0

    def read_call(self, call: ast.Call) -> None:
        """Record what a call touches."""
        name = _read_dotted_name(call.func)
        given = [self.evaluate(argument) for argument in call.args]
        first = given[0] if given else None
        if name in ("open", "io.open", "codecs.open"):
            mode = given[1] if len(given) > 1 else self._evaluate_keyword(call, "mode")
            self._add_access("write" if set(mode or "r") & set("wax+") else "read", first, call)
        elif name in _OF_TWO:
            for place, mode_ in enumerate(_OF_TWO[name][: len(given)]):
                self._add_access(mode_, given[place], call)
        elif name in _OF_ONE:
            self._add_access(_OF_ONE[name], first, call)
        elif name in _RUNS and call.args:
            self._read_process(call.args[0], first)
        elif name.rpartition(".")[2] == "urlopen" and call.args:
            self._read_urlopen(call)
        elif isinstance(call.func, ast.Attribute):
            self._read_method_call(call, call.func, given)

    def _read_method_call(self, call: ast.Call, function: ast.Attribute, given: Sequence[str | None]) -> None:
        """Record what a method call touches: a method of a path, or of an HTTP client."""
        if function.attr in _OF_A_PATH or function.attr == "open":
            path = self.evaluate(function.value)
            reads = function.attr == "open" and not set((given[0] if given else None) or "r") & set("wax+")
            mode: AccessMode = "read" if reads else _OF_A_PATH.get(function.attr, "write")
            self._add_access(mode, path, call, given[0] if given and function.attr.startswith("write") else None)
        elif function.attr in _METHODS and given and given[0] and "/" in given[0] and "://" in given[0]:
            self._add_request(function.attr.upper(), given[0], call)
        elif function.attr == "request" and len(given) > 1 and given[0] and given[1] and "/" in given[1]:
            self._add_request(given[0].upper(), given[1], call)

    def evaluate(self, value: ast.expr, depth: int = 0) -> str | None:
        """Return the text of an expression, with `{}` for unknown parts; None if no part is known."""
        self.effort += 1
        if depth > 20 or self.effort > _MAX_EXPRESSIONS:
            return None
        if isinstance(value, ast.Constant):
            return value.value if isinstance(value.value, str) else None
        if isinstance(value, ast.Name):
            return self.evaluate(self.names[value.id], depth + 1) if value.id in self.names else None
        if isinstance(value, ast.JoinedStr):
            parts = [part.value if isinstance(part, ast.FormattedValue) else part for part in value.values]
            return _cut("".join(self.evaluate(part, depth + 1) or _UNKNOWN for part in parts))
        if isinstance(value, ast.BinOp) and isinstance(value.op, (ast.Add, ast.Div)):
            left, right = self.evaluate(value.left, depth + 1), self.evaluate(value.right, depth + 1)
            if left is None and right is None:
                return None
            between = "/" if isinstance(value.op, ast.Div) else ""
            return _cut(f"{_UNKNOWN if left is None else left}{between}{_UNKNOWN if right is None else right}")
        if isinstance(value, ast.Call) and value.args:
            return self._evaluate_call(value, depth)
        return None

    def _evaluate_call(self, call: ast.Call, depth: int) -> str | None:
        """Return the path that a constructor or a joining function makes; None for any other call."""
        name = _read_dotted_name(call.func)
        if name.rpartition(".")[2] in ("Path", "PurePath", "join", "str", "fspath", "PosixPath"):
            if isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Constant):
                return None
            parts = [self.evaluate(argument, depth + 1) for argument in call.args]
            return None if parts[0] is None else _cut("/".join(part or _UNKNOWN for part in parts))
        return None

    def _evaluate_keyword(self, call: ast.Call, name: str) -> str | None:
        return next((self.evaluate(one.value) for one in call.keywords if one.arg == name), None)

    def _read_process(self, argument: ast.expr, text: str | None) -> None:
        """Record the shell command of a call that starts a process."""
        if isinstance(argument, (ast.List, ast.Tuple)):
            text = shlex.join(self.evaluate(one) or _UNKNOWN for one in argument.elts)
        if text:
            self.touched.scripts.append(text)

    def _read_urlopen(self, call: ast.Call) -> None:
        """Record the request of `urlopen`, for a URL or a `TouchedRequest` object."""
        asked = call.args[0]
        asked = self.names.get(asked.id, asked) if isinstance(asked, ast.Name) else asked
        if isinstance(asked, ast.Call) and asked.args:
            url = self.evaluate(asked.args[0])
            has_body = len(asked.args) > 1 or any(one.arg == "data" for one in asked.keywords)
            self._add_request(self._evaluate_keyword(asked, "method") or ("POST" if has_body else "GET"), url, asked)
        else:
            self._add_request("POST" if len(call.args) > 1 else "GET", self.evaluate(asked), call)

    def _add_request(self, method: str, url: str | None, call: ast.Call) -> None:
        if url is not None:
            body = next((_read_literal(one.value) for one in call.keywords if one.arg in ("json", "data")), None)
            self.touched.requests.append(TouchedRequest(method, add_scheme(url), body, ast.unparse(call)[:500]))

    def _add_access(self, mode: AccessMode, path: str | None, call: ast.Call, content: str | None = None) -> None:
        """Record an access to a file, unless its path is unknown."""
        if path and path != _UNKNOWN:
            self.touched.accesses.append(Access(resolved(path, self.cwd), mode, ast.unparse(call)[:500], content))


def _cut(text: str) -> str:
    return text[:LONGEST]


def _read_dotted_name(value: ast.expr) -> str:
    """Return the dotted name of an expression, such as `os.path.join`; empty if it is no name."""
    parts = list[str]()
    while isinstance(value, ast.Attribute):
        parts.append(value.attr)
        value = value.value
    return ".".join([value.id, *reversed(parts)]) if isinstance(value, ast.Name) else ""


def _read_literal(value: ast.expr) -> str | None:
    """Return the JSON of a literal; None for an expression that is no literal."""
    try:
        return json.dumps(ast.literal_eval(value))
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return None
