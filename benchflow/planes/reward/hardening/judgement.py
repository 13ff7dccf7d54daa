"""Compare the surveys before and after the agent, and decide what is removed, restored and reported."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from benchflow.contracts.reward import HardeningFinding, Weight
from benchflow.contracts.verifier import HardeningConfig
from benchflow.planes.reward.hardening.build_files import (
    filter_attributes,
    filter_package_scripts,
    has_variable_include,
)
from benchflow.planes.reward.hardening.repositories import filter_git_settings
from benchflow.planes.reward.hardening.survey import KeptFile, Survey, get_module_name, is_below, is_in_workspace
from benchflow.planes.reward.hardening.verifier_dependencies import (
    DOTFILES,
    HOOKED,
    HOOKS,
    LOCALE_SETTINGS,
    LOGIN_SETTINGS,
    LOGS,
    MAKE_BUILD,
    MAKE_SOURCES,
    NODE_BUILD,
    PYTEST_FILES,
    PYTHON_BUILD,
    RAKE_BUILD,
    RUNNER_FILES,
    SITE,
    VERIFIERS,
)

BUILD = "restore_build_files"
CONFTESTS = "cleanup_conftests"
LINKS = "remove_escaping_links"
PYTHON = "cleanup_python_hooks"
FRESH = "fresh_logs"
ENVIRONMENT = "pin_environment"
PROCESSES = "kill_processes"
STANDARD_ITEM = "standard_library"
_FAMILIES = (PYTHON_BUILD, MAKE_BUILD, NODE_BUILD, RAKE_BUILD)
_LINKS_FOLLOWED = 40
_GIT_OF_USERS = ("/.gitconfig", "/.config/git/config", "/etc/gitconfig")
CRON_PLACES = ("/etc/cron", "/var/spool/cron/")
_ANYBODYS = ("/tmp", "/var/tmp", "/dev", "/proc")
"""Directories in which any process may write, or that lead elsewhere."""

_NOBODYS = (*VERIFIERS, "/oracle", "/solution", "/proc", "/sys", "/dev/stdin", "/dev/fd")
"""Targets that no link of honest work has."""
_HOOK = re.compile(r"invoke|pkgs|hook|dir::|::bin|::path|proxy|solver|planner|methods|instdir|admindir", re.IGNORECASE)
_OF_LOCALES = re.compile(r"\s*(#|$|(export\s+)?(LANG|LANGUAGE|LC_[A-Z]+)=)")
_OF_LOGINS = re.compile(r"\s*(ENV_PATH|ENV_SUPATH|ALWAYS_SET_PATH|ENVIRON_FILE|FAKE_SHELL|ENV_TZ|ENV_HZ)\b")
"""Settings of logins that set variables, or the shell."""

_JOURNALS = ("-wal", "-journal")
_OF_HOME = tuple(f"/{name}" for name in DOTFILES)


@dataclass(frozen=True)
class Judgement:
    """Decisions about the files that the agent left. An item is one of `verifier.hardening`."""

    remove: dict[str, str] = field(default_factory=dict)
    """Paths to remove, with the item."""

    restore: dict[str, tuple[str, KeptFile]] = field(default_factory=dict)
    """Paths to write, with the item and the file to write."""

    links: dict[str, str] = field(default_factory=dict)
    """New or changed links that lead out of the workspace, with their targets."""

    found: list[HardeningFinding] = field(default_factory=list)
    """Findings about files that are left as they are."""

    why: dict[str, str] = field(default_factory=dict)
    """Reasons for the removal of paths, if their names don't show it."""


def judge(
    before: Survey, now: Survey, config: HardeningConfig, workspace: str, named: Collection[str] = ()
) -> Judgement:
    """Return the decisions about all differences between two surveys, by the items that are on.

    Args:
        before: Survey before the agent acted.
        now: Survey after it.
        config: Items that are on.
        workspace: Workspace; empty if that is the whole file system.
        named: Names of modules that the task asks for, which may shadow others.
    """
    result = Judgement()
    for path in sorted(set(now.found) - set(before.found)):
        _judge_new(path, before, now, workspace, result)
    for path in set(now.top) - set(before.top):
        if get_module_name(path) not in named:
            result.remove[path] = PYTHON
    _judge_shadows(before, now, named, result)
    for path in now.git:
        _judge_repository(path, before, now, workspace, result)
    for path in before.files.keys() - set(before.git):
        kept = before.files[path]
        is_gone = path not in now.files
        if path.startswith(CRON_PLACES):
            if is_gone or now.files[path].content != kept.content:
                result.found.append(_note_cron_job(path))
        elif is_gone or now.files[path].content != kept.content:
            result.restore[path] = (_find_item(path), kept if is_gone else _filter_changes(path, kept, now.files[path]))
            if not is_gone and result.restore[path][1].content == now.files[path].content:
                del result.restore[path]
    for path in set(now.orphans) - set(before.orphans):
        # SQLite would apply it to any database that is created beside it.
        result.remove[path] = LINKS
        result.why[path] = "is a journal of a database that is not there"
    for path in now.fresh:
        result.remove.setdefault(path, PYTHON)
    for path, text in now.links.items():
        if before.links.get(path) != text and not is_in_workspace(resolve_links(path, now.links), workspace):
            result.links[path] = text
    return _filter_by_config(result, config)


def _filter_by_config(result: Judgement, config: HardeningConfig) -> Judgement:
    """Return a judgement without the decisions of items that are off."""
    return Judgement(
        remove={path: item for path, item in result.remove.items() if getattr(config, item)},
        restore={path: what for path, what in result.restore.items() if getattr(config, what[0])},
        links=result.links if config.remove_escaping_links else {},
        found=[finding for finding in result.found if getattr(config, finding.item)],
        why=result.why,
    )


def _judge_new(path: str, before: Survey, now: Survey, workspace: str, result: Judgement) -> None:
    """Decide about a file that was not there before."""
    name = posixpath.basename(path)
    if is_below(path, VERIFIERS):
        if path != LOGS:
            result.remove[path] = FRESH
    elif name.endswith(".pth") and _names_directories(path, now):
        detail = "names directories only, which come after those of installed packages"
        result.found.append(HardeningFinding(item=PYTHON, action="found", path=path, detail=detail))
    elif path.startswith(CRON_PLACES):
        result.found.append(_note_cron_job(path))
    elif path.startswith(HOOKED) and (hooked := now.files.get(path)) and not _HOOK.search(hooked.content):
        # One that was not read may name a program.
        return
    elif (permit := _find_filter(path)) is not None and (kept := now.files.get(path)) is not None:
        if (harmless := permit(kept.content, "")) != kept.content:
            result.restore[path] = (BUILD, kept.model_copy(update={"content": harmless}))
    elif (item := _find_item(path)) == CONFTESTS:
        if not _is_installed(path):
            result.remove[path] = item
    elif name == "pyvenv.cfg":
        return
    elif name in RUNNER_FILES:
        result.remove[path] = BUILD
    elif name in MAKE_SOURCES:
        _judge_family(MAKE_BUILD, path, before, result)
    elif name == ".gitattributes":
        kept = now.files.get(path)
        if kept is None or (harmless := filter_attributes(kept.content, "")) != kept.content:
            if kept is None:
                result.remove[path] = BUILD
            else:
                result.restore[path] = (BUILD, kept.model_copy(update={"content": harmless}))
    elif name in PYTEST_FILES:
        detail = "does not count: PYTEST_ADDOPTS is pinned"
        result.found.append(HardeningFinding(item=ENVIRONMENT, action="found", path=path, detail=detail))
    elif path in before.includes or path in before.targets:
        result.remove[path] = BUILD
    elif name.endswith(".mk") and is_in_workspace(path, workspace):
        if any(has_variable_include(file, kept.content) for file, kept in before.files.items()):
            result.remove[path] = BUILD
    elif path.endswith(_OF_HOME) and is_in_workspace(path, workspace) and name in NODE_BUILD:
        _judge_family(NODE_BUILD, path, before, result)
    elif item == PYTHON or not is_in_workspace(path, workspace) or path.endswith(_OF_HOME):
        result.remove[path] = item
    elif family := next((names for names in _FAMILIES if name in names), None):
        _judge_family(family, path, before, result)


def _note_cron_job(path: str) -> HardeningFinding:
    """Return the note about a job of cron or at."""
    detail = "is a job, and nothing starts it while the verifier runs"
    return HardeningFinding(item=PROCESSES, action="found", path=path, detail=detail)


def _judge_family(family: Collection[str], path: str, before: Survey, result: Judgement) -> None:
    """Remove a new build file if the project had one of its kind beside it; else report it."""
    directory = posixpath.dirname(path)
    if any(f"{directory}/{other}" in before.files for other in family):
        result.remove[path] = BUILD
    elif not _is_installed(path):
        result.found.append(HardeningFinding(item=BUILD, action="found", path=path, detail="is new"))


def _judge_shadows(before: Survey, now: Survey, named: Collection[str], result: Judgement) -> None:
    """Report new modules that are named like one of the standard library, and are not removed."""
    own = {get_module_name(path) for path in before.shadows} | set(named)
    for path in now.shadows:
        if get_module_name(path) not in own and path not in result.remove:
            detail = "is not imported in place of the standard library's"
            result.found.append(HardeningFinding(item=STANDARD_ITEM, action="found", path=path, detail=detail))


def _find_filter(path: str) -> Callable[[str, str], str] | None:
    """Return the filter of a settings file, which maps new and former content to what is allowed; None for others.

    It is the same for new and for changed files.
    """
    if path.endswith(_GIT_OF_USERS):
        return filter_git_settings
    if path in LOCALE_SETTINGS:
        return filter_locale_settings
    return restore_login_settings if path == LOGIN_SETTINGS else None


def _filter_changes(path: str, was: KeptFile, now: KeptFile) -> KeptFile:
    """Return a changed file with only those changes that are known to run no program; else the former file."""
    if posixpath.basename(path) == "package.json":
        text = filter_package_scripts(now.content, was.content)
    elif path.endswith(".gitattributes"):
        text = filter_attributes(now.content, was.content)
    else:
        permit = _find_filter(path)
        text = None if permit is None else permit(now.content, was.content)
    return was if text is None else now.model_copy(update={"content": text})


def _judge_repository(path: str, before: Survey, now: Survey, workspace: str, result: Judgement) -> None:
    """Decide about a file of a repository: it must lead to the workspace, and new settings must name no program."""
    directory, name = posixpath.split(path)
    kept, was = now.files.get(path), before.files.get(path)
    if kept is None:
        # It was not read: it is a link, or larger than any such file that git writes.
        if was is not None:
            result.restore[path] = (BUILD, was)
        elif path not in before.git:
            result.remove[path] = BUILD
    elif was is not None and kept.content == was.content:
        return
    elif name in (".git", "commondir"):
        leads_to = posixpath.normpath(posixpath.join(directory, kept.content.removeprefix("gitdir:").strip()))
        if is_in_workspace(resolve_links(leads_to, now.links), workspace):
            return
        if was is None:
            result.remove[path] = BUILD
        else:
            result.restore[path] = (BUILD, was)
    elif (harmless := filter_git_settings(kept.content, was.content if was else "")) != kept.content:
        result.restore[path] = (BUILD, kept.model_copy(update={"content": harmless}))


def _find_item(path: str) -> str:
    """Return the item of `verifier.hardening` that a path belongs to."""
    name = posixpath.basename(path)
    if name == "conftest.py":
        return CONFTESTS
    if name in PYTHON_BUILD or name.startswith("."):
        return BUILD
    if name.partition(".")[0] in HOOKS or name == "__pycache__" or name.endswith(".pth"):
        return PYTHON
    return BUILD


def _is_installed(path: str) -> bool:
    """Return whether a path belongs to an installed package."""
    return any(part in (*SITE, "node_modules") for part in path.split("/"))


def _names_directories(path: str, now: Survey) -> bool:
    """Return whether a `.pth` file only names directories, as an editable installation does, and imports nothing."""
    kept = now.files.get(path)
    lines = [line.strip() for line in kept.content.splitlines()] if kept else []
    named = [line for line in lines if line and not line.startswith("#")]
    return bool(named) and all(
        line.startswith("/") and not is_below(posixpath.normpath(line), _ANYBODYS) for line in named
    )


def filter_locale_settings(content: str, was: str) -> str:
    """Return locale settings without new lines that set any other variable.

    Args:
        content: Content of the file.
        was: Former content, all lines of which are allowed.
    """
    lines, known = content.splitlines(keepends=True), set(was.splitlines())
    return "".join(line for line in lines if line.rstrip("\n") in known or _OF_LOCALES.match(line))


def restore_login_settings(content: str, was: str) -> str:
    """Return login settings in which those that set variables are as they were. All others are an administrator's work.

    Args:
        content: Content of the file.
        was: Former content.
    """
    lines, before = content.splitlines(keepends=True), was.splitlines(keepends=True)
    known = [line for line in before if _OF_LOGINS.match(line)]
    if [line for line in lines if _OF_LOGINS.match(line)] == known:
        return content
    return "".join([*(line for line in lines if not _OF_LOGINS.match(line)), *known])


def get_weight(item: str, path: str, leads_to: str = "") -> Weight:
    """Return the weight of a removed or restored file: `note` for what honest work may leave, else `tampering`.

    Args:
        item: Item that removed or restored it.
        path: Path of the file.
        leads_to: Target of a link; empty for other files.
    """
    name = posixpath.basename(path)
    if item == FRESH:
        return "tampering" if path.startswith(f"{LOGS}/reward") else "note"
    if item == LINKS:
        if not leads_to:
            # An archive that leads out, or a journal that was left behind: neither has the text of a link.
            return "note" if path.endswith(_JOURNALS) else "tampering"
        return "tampering" if is_below(posixpath.normpath(leads_to), _NOBODYS) else "note"
    if item == PYTHON:
        return "tampering" if name.partition(".")[0] in HOOKS else "note"
    return "note"


def resolve_links(path: str, links: dict[str, str]) -> str:
    """Return the path that a path leads to, as far as the workspace's links are known; `/` for a loop."""
    resolved, rest = "", [part for part in path.split("/") if part]
    for _ in range(_LINKS_FOLLOWED):
        while rest:
            part = rest.pop(0)
            if part in ("", "."):
                continue
            if part == "..":
                resolved = posixpath.dirname(resolved) if resolved else ""
                continue
            resolved = f"{resolved}/{part}".replace("//", "/")
            if resolved in links:
                break
        else:
            return resolved or "/"
        text = links[resolved]
        rest = [*text.split("/"), *rest]
        resolved = "" if text.startswith("/") else posixpath.dirname(resolved)
    return "/"
