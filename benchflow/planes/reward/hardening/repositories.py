"""Filter the settings of a git repository: drop those by which git would run a program of the agent's choice.

The list of settings that name programs grows with each version of git; the list of harmless settings that people use
does not. So this is an allow-list: of new settings all others are dropped, and so is each line that is not in the form
that git itself writes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_SECTION = re.compile(r'\s*\[([\w-]+)(?:\.([\w.-]+)|\s+"((?:[^"\\]|\\.)*)")?\]\s*', re.ASCII)
_SETTING = re.compile(r"\s*([a-z][a-z0-9-]*)\s*(?:=(.*))?", re.ASCII | re.DOTALL | re.IGNORECASE)
_Setting = tuple[str, str | None, str, str]

# Sections without any setting that names a program. An alias may, but can't replace one of git's own commands.
_SECTIONS = """
    advice alias apply author blame branch checkout color column commit committer extensions fetch i18n index log pack
    pull push rebase rerere stash status tag user
"""
_SETTINGS = """
    core.abbrev core.autocrlf core.bare core.checkstat core.commentchar core.compression core.eol core.excludesfile
    core.filemode core.ignorecase core.logallrefupdates core.longpaths core.precomposeunicode core.preloadindex
    core.quotepath core.repositoryformatversion core.safecrlf core.sharedrepository core.sparsecheckout
    core.sparsecheckoutcone core.splitindex core.symlinks core.trustctime core.untrackedcache core.whitespace
    diff.algorithm diff.colormoved diff.context diff.ignoresubmodules diff.indentheuristic diff.mnemonicprefix
    diff.noprefix diff.renames diff.tool gc.auto gc.autodetach gc.autopacklimit gpg.format init.defaultbranch
    merge.conflictstyle merge.ff merge.log merge.renames merge.stat merge.tool
    remote.*.fetch remote.*.mirror remote.*.prune remote.*.push remote.*.pushurl remote.*.tagopt remote.*.url
    submodule.*.active submodule.*.branch submodule.*.fetchrecursesubmodules submodule.*.ignore submodule.*.path
    submodule.*.url
"""
_HARMLESS = frozenset((_SECTIONS + _SETTINGS).split())


def filter_git_settings(text: str, before: str) -> str:
    """Return git settings without new ones that may name a program.

    Args:
        text: Settings, as a configuration file of git has them.
        before: Former settings, all of which are allowed; empty for a new file.
    """
    known = {setting for _, setting in _read_settings(before) if setting is not None}
    lines = []
    for line, setting in _read_settings(text):
        if setting is not None:
            section, sub, key, _ = setting
            name = f"{section}.{key}" if sub is None else f"{section}.*.{key}"
            is_kept = setting in known or section in _HARMLESS or name in _HARMLESS
        else:
            is_kept = not line.strip() or line.lstrip()[0] in "#;" or _SECTION.fullmatch(line) is not None
        if is_kept:
            lines.append(line)
    return "".join(lines)


def _read_settings(text: str) -> Iterator[tuple[str, _Setting | None]]:
    """Yield each line, and its setting as (section, subsection, key, value); None for a line that is no setting."""
    section: tuple[str, str | None] | None = None
    # Git ends lines only at newlines, unlike splitlines().
    for line in re.findall(r"[^\n]*\n|[^\n]+", text):
        setting = None
        if found := _SECTION.fullmatch(line):
            section = found[1].lower(), found[2].lower() if found[2] else found[3]
        elif line.lstrip().startswith("["):
            section = None
        elif section and (found := _SETTING.fullmatch(line)) and not line.rstrip("\r\n").endswith("\\"):
            setting = (*section, found[1].lower(), (found[2] or "").strip())
        yield line, setting
