"""Read build files of the workspace: the files that they include, and changes of settings that run no program."""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator

from benchflow.planes.reward.hardening.verifier_dependencies import MAKE_BUILD

_PHONY = re.compile(r"^\.PHONY\s*:(.*)$", re.MULTILINE)
_RULE = re.compile(r"^(?P<targets>[\w -]+?)\s*:(?![=:])[^\n]*\n(?P<recipe>(?:\t[^\n]*(?:\n|\Z))*)", re.MULTILINE)
_PLAIN = re.compile(r"[\w-]+")

_GIT_INCLUDE = re.compile(r"^\s*path\s*=\s*(\S+)\s*$", re.MULTILINE | re.IGNORECASE)
_DRIVER = re.compile(r"\s(?:filter|diff|merge)=(?!lfs\b)")
"""Pattern of an attribute that runs a program; the program of Git LFS is git's own."""

_INCLUDE = re.compile(r"^[ ]*(?:-|s)?include[ \t]+([^#\n]+)", re.MULTILINE)


def list_includes(path: str, content: str) -> Iterator[str]:
    """Yield the files that a Makefile, or a configuration of git, includes by a name without variables.

    Args:
        path: Path of the file that includes.
        content: Its content.
    """
    if path.endswith(("/config", "gitconfig")):
        for name in _GIT_INCLUDE.findall(content):
            # `~` is the home of git's user; a file there is the image's, or is surveyed by its own name.
            if not name.startswith(("~", "%")):
                yield posixpath.normpath(posixpath.join(posixpath.dirname(path), name.strip('"')))
    if posixpath.basename(path) not in MAKE_BUILD and not path.endswith(".mk"):
        return
    for line in _INCLUDE.findall(content.replace("\\\n", " ")):
        for name in line.split():
            if not any(sign in name for sign in "$()*?["):
                yield posixpath.normpath(posixpath.join(posixpath.dirname(path), name))


def filter_attributes(text: str, before: str) -> str:
    """Return git attributes without new lines that have git run a configured program on files.

    Args:
        text: Content of the `.gitattributes`.
        before: Former content, all lines of which are allowed.
    """
    known = set(before.splitlines())
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if line.rstrip("\n") in known or not _DRIVER.search(line))


def list_undeclared_targets(path: str, content: str) -> Iterator[str]:
    """Yield the files that would keep make from running a rule that makes no file.

    These have the names of targets like `check` that the Makefile does not declare as phony: if a file of that name
    exists, make considers the target up to date.

    Args:
        path: Path of the Makefile; nothing is yielded for another file.
        content: Its content.
    """
    if posixpath.basename(path) not in MAKE_BUILD:
        return
    declared = {name for line in _PHONY.findall(content) for name in line.split()}
    for rule in _RULE.finditer(content):
        recipe = rule["recipe"]
        for name in rule["targets"].split():
            makes_it = "$@" in recipe or "-o" in recipe.split() or re.search(rf"\b{re.escape(name)}\b", recipe)
            if name not in declared and recipe.strip() and not makes_it and _PLAIN.fullmatch(name):
                yield posixpath.join(posixpath.dirname(path), name)


def has_variable_include(path: str, content: str) -> bool:
    """Return whether a Makefile includes files by a variable or a pattern, which may match any `*.mk`."""
    lines = _INCLUDE.findall(content.replace("\\\n", " "))
    return posixpath.basename(path) in MAKE_BUILD and any(sign in line for line in lines for sign in "$*?[")


def filter_package_scripts(text: str, before: str) -> str | None:
    """Return a `package.json` with its former scripts and jest settings; None if it can't be parsed.

    New scripts stay, unless npm would run them by itself before or after a former one.

    Args:
        text: Content of the file.
        before: Former content.
    """
    try:
        now, was = json.loads(text), json.loads(before)
        own, known = now.get("scripts", {}), was.get("scripts", {})
        if not isinstance(own, dict) or not isinstance(known, dict):
            return None
    except (ValueError, AttributeError, RecursionError):
        return None
    hooks = {f"{when}{name}" for when in ("pre", "post") for name in (*known, "install", "test", "start", "prepare")}
    scripts = {name: value for name, value in own.items() if name not in hooks} | known
    if scripts == own and now.get("jest") == was.get("jest"):
        return text
    changed = {key: value for key, value in now.items() if key not in ("scripts", "jest")}
    changed |= {key: was[key] for key in ("jest",) if key in was}
    return json.dumps(changed | ({"scripts": scripts} if scripts else {}), indent=2) + "\n"
