"""Notes about the agent's files that a verifier may misread, and about honest work that does not count."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterator, Mapping, Sequence

from benchflow.contracts.reward import HardeningFinding
from benchflow.planes.reward.hardening.git_state import list_repositories
from benchflow.planes.reward.hardening.hardening_record import MAX_NAMED, note_paths
from benchflow.planes.reward.hardening.judgement import BUILD, ENVIRONMENT, LINKS, PYTHON, resolve_links
from benchflow.planes.reward.hardening.survey import Survey, format_name, is_below, is_in_workspace
from benchflow.planes.reward.hardening.verifier_dependencies import SITE

_BROUGHT = ("node_modules", ".git", *SITE)
"""Directories in which installers, and git, create links."""


def note_work(before: Survey, now: Survey, workspace: str, loaded: Collection[str]) -> list[HardeningFinding]:
    """Return one note for each kind of file that was found.

    Args:
        before: Survey before the agent acted.
        now: Survey after it.
        workspace: Workspace; empty if that is the whole file system.
        loaded: Names of the pytest plugins that are loaded.
    """
    return [
        note_paths(item, paths, detail) for item, paths, detail in _list_kinds(before, now, workspace, loaded) if paths
    ]


def _list_kinds(
    before: Survey, now: Survey, workspace: str, loaded: Collection[str]
) -> Iterator[tuple[str, Sequence[str], str]]:
    """Yield (item, paths, detail) for each kind of file; `paths` may be empty."""
    links = _find_inner_links(before, now, workspace)
    target = format_name(now.links[links[0]]) if links else ""
    yield LINKS, links, f"is a link to another file of the workspace, {target}"
    yield LINKS, _find_new(now.naming, before.naming), "names a directory of the verifier's"
    acting = {path: new for path, texts in now.acting.items() if (new := _find_new(texts, before.acting.get(path, ())))}
    yield LINKS, list(acting), f"is a database with {_join_first(acting)}"
    journals = _find_new(now.journals, {*before.journals, *now.orphans})
    yield LINKS, journals, "is a journal, which SQLite applies to the database beside it"
    yield PYTHON, _find_new(now.equal, before.equal), "has objects that are equal to everything"
    dashed = _find_new(now.dashed, before.dashed)
    yield LINKS, dashed, "begins with a dash: a program that gets such names takes it for an option"
    yield BUILD, _find_new(now.future, before.future), "has a time in the future, so that make takes it for new"
    modules = {*before.modules, *now.modules}
    new = [path for path in _find_new(now.modules, before.modules) if posixpath.basename(path) == "__init__.py"]
    packages = [path for path in new if f"{posixpath.dirname(path)}.py" in modules]
    yield PYTHON, packages, "is a package that Python imports in place of a module of its name"
    yield LINKS, _find_new(now.temporary, before.temporary), "was left where programs make their temporary files"
    yield BUILD, _find_new(now.packages, before.packages), "is new or changed, and is what node takes first"
    repositories = list_repositories(now)
    hooks = [path for path in now.hooks if path not in before.hooks and not path.endswith(".sample")]
    hooks = [path for path in hooks if posixpath.dirname(posixpath.dirname(path)) in repositories]
    yield ENVIRONMENT, hooks, "is a hook of git, and does not run while the verifier does"
    known = {path: {*loaded, *before.plugins.get(path, ())} for path in now.plugins}
    plugins = {path: new for path, texts in now.plugins.items() if (new := _find_new(texts, known[path]))}
    detail = (
        f"declares a plugin that pytest does not load, {_join_first(plugins)}: verifier.pytest_plugins does not name it"
    )
    yield ENVIRONMENT, list(plugins), detail


def _find_new(texts: Sequence[str], known: Collection[str]) -> list[str]:
    """Return the texts that are not known yet, without duplicates."""
    before = set(known)
    return [text for text in dict.fromkeys(texts) if text not in before]


def _join_first(texts: Mapping[str, Sequence[str]]) -> str:
    """Return the texts of the first file, joined."""
    return ", ".join(next(iter(texts.values()), [])[:MAX_NAMED])


def _find_inner_links(before: Survey, now: Survey, workspace: str) -> list[str]:
    """Return new links that stay in the workspace, except those of installers and virtual environments."""
    environments = [posixpath.dirname(path) for path in now.found if path.endswith("/pyvenv.cfg")]
    return [
        path
        for path, text in sorted(now.links.items())
        if before.links.get(path) != text
        and not any(part in _BROUGHT for part in path.split("/"))
        and not is_below(path, environments)
        and is_in_workspace(resolve_links(path, now.links), workspace)
    ]
