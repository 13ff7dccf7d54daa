"""Files whose names a sandbox, an agent or an archive can choose are opened by `confined` and `archive_reader` alone.

All other modules that open, list, copy, change or unpack by path are in `HOST`, each with the reason why nobody but this
host chooses the names that it uses, and why nothing but this host has written what is on the way to them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.paths import ROOT

PACKAGE = ROOT / "benchflow"

CONVERTED_AT_THE_MERGE: set[str] = set()
"""Filled below."""

HOST: dict[str, str] = {}

_OS = {
    *("open", "listdir", "scandir", "walk", "fwalk", "mkdir", "makedirs", "mkfifo", "mknod", "link", "symlink"),
    *(
        "readlink",
        "remove",
        "removedirs",
        "rename",
        "renames",
        "replace",
        "rmdir",
        "unlink",
        "chmod",
        "lchmod",
        "chown",
    ),
    *("lchown", "utime", "truncate", "setxattr", "getxattr", "listxattr", "removexattr", "startfile"),
}
_MODULES = {
    "os": _OS,
    "io": {"open", "open_code", "FileIO"},
    "shutil": {
        *("copy", "copy2", "copyfile", "copytree", "copymode", "copystat", "move", "rmtree", "chown"),
        *("make_archive", "unpack_archive"),
    },
    "tarfile": {"open", "TarFile", "is_tarfile"},
    "zipfile": {"ZipFile", "PyZipFile", "is_zipfile"},
    "gzip": {"open", "GzipFile"},
    "bz2": {"open", "BZ2File"},
    "lzma": {"open", "LZMAFile"},
    "glob": {"glob", "iglob"},
    "sqlite3": {"connect", "Connection"},
    "fileinput": {"input", "FileInput"},
    "linecache": {"getline", "getlines"},
    "mmap": {"mmap"},
    "filecmp": {"cmp", "cmpfiles", "dircmp"},
}
"""Functions of modules that take a path."""

_METHODS = {
    *("read_text", "read_bytes", "write_text", "write_bytes", "iterdir", "glob", "rglob", "symlink_to", "hardlink_to"),
    *("unlink", "mkdir", "rmdir", "chmod", "lchmod", "touch", "readlink", "extract", "extractall", "create_archive"),
}
"""Names that only methods of `Path`, of archives and of the docker library's helpers for them have here."""

_PROGRAMS = {"tar", "rm", "cp", "mv", "ln", "unzip", "gzip", "rsync", "install"}


def uses(source: str) -> Iterator[str]:
    """Yield what a module does with paths, each as `line: call`."""
    tree = ast.parse(source)
    aliases = _aliases(tree)
    for node in ast.walk(tree):
        # A function that is only named may be handed on, to a thread for example.
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            module = aliases.get(node.value.id, node.value.id)
            if node.attr in _MODULES.get(module, ()) and not _is_by_memory(node, tree):
                yield f"{node.lineno}: {module}.{node.attr}"
                continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
            module, _, function = aliases.get(node.id, "").rpartition(".")
            if function in _MODULES.get(module, ()) or node.id == "open":
                yield f"{node.lineno}: {node.id}"
        if isinstance(node, ast.Attribute) and node.attr in _METHODS and not _is_of_module(node, aliases):
            yield f"{node.lineno}: .{node.attr}"
        if isinstance(node, ast.Call):
            yield from _calls(node, aliases)


def _aliases(tree: ast.Module) -> dict[str, str]:
    """Return what the imported names stand for, with their modules."""
    found = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _is_of_module(node: ast.Attribute, aliases: dict[str, str]) -> bool:
    """Tell whether this is a function of an imported module, as `ast.walk` is; `Path.read_text` is none."""
    return isinstance(node.value, ast.Name) and aliases.get(node.value.id, "") in _MODULES


def _is_by_memory(node: ast.Attribute, tree: ast.Module) -> bool:
    """Tell whether `tarfile.open` is only used to write an archive, or `os.open`'s kind is relative to a descriptor."""
    calls = [call for call in ast.walk(tree) if isinstance(call, ast.Call) and call.func is node]
    if not calls or node.attr != "open" or not isinstance(node.value, ast.Name) or node.value.id != "tarfile":
        return False
    given = {keyword.arg: keyword.value for keyword in calls[0].keywords}
    mode = given.get("mode")
    return "fileobj" in given and isinstance(mode, ast.Constant) and str(mode.value).startswith(("w", "x"))


def _calls(node: ast.Call, aliases: dict[str, str]) -> Iterator[str]:
    """Yield what is told from others of its name only by its arguments."""
    if not isinstance(node.func, ast.Attribute):
        return
    first = node.args[0] if node.args else None
    is_module = _is_of_module(node.func, aliases)
    if node.func.attr == "open" and not is_module:
        mode = next((keyword.value for keyword in node.keywords if keyword.arg == "mode"), first)
        # `Path.open`: what else is called so takes no mode.
        is_mode = isinstance(mode, ast.Constant) and isinstance(mode.value, str) and set(mode.value) <= set("rwaxbt+")
        if is_mode or {keyword.arg for keyword in node.keywords} & {"encoding", "buffering", "newline", "errors"}:
            yield f"{node.lineno}: .open"
    # `str.replace` takes two, and `ConfinedDirectory.rename` as well; `datetime.replace` takes names.
    if node.func.attr in ("rename", "replace") and len(node.args) == 1 and not node.keywords and not is_module:
        yield f"{node.lineno}: .{node.func.attr}"
    if node.func.attr == "walk" and not (isinstance(node.func.value, ast.Name) and node.func.value.id == "ast"):
        yield f"{node.lineno}: .walk"
    if isinstance(node.func.value, ast.Name) and aliases.get(node.func.value.id) == "subprocess":
        argv = first.elts[0] if isinstance(first, ast.List | ast.Tuple) and first.elts else None
        if isinstance(argv, ast.Constant) and argv.value in _PROGRAMS:
            yield f"{node.lineno}: {argv.value}"


def modules() -> Iterator[tuple[str, str]]:
    """Yield the package's modules, by their paths in it, with their source."""
    for path in sorted(PACKAGE.rglob("*.py")):
        yield path.relative_to(PACKAGE).as_posix(), path.read_text()


if __name__ == "__main__":
    for name, source in modules():
        found = sorted(set(uses(source)), key=lambda use: int(use.split(":")[0]))
        if found:
            print(name, len(found), "; ".join(found)[:150])
