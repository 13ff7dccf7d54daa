"""What is made of two looks at a sandbox."""

from __future__ import annotations

import pytest

from benchflow.contracts.verifier import HardeningConfig
from benchflow.planes.reward.hardening.judgement import get_weight, judge, resolve_links
from benchflow.planes.reward.hardening.repositories import filter_git_settings
from benchflow.planes.reward.hardening.survey import KeptFile, Survey, is_relevant, is_shadowing


def kept(content: str = "") -> KeptFile:
    return KeptFile(content=content, mode=0o644, uid=0, gid=0)


@pytest.mark.parametrize(
    ("links", "path", "leads_to"),
    [
        ({"/app/a": "b"}, "/app/a", "/app/b"),
        ({"/app/a": "b", "/app/b": "/tests"}, "/app/a/x", "/tests/x"),
        ({"/app/d": "sub/deep", "/app/l": "d/../../../x"}, "/app/l", "/x"),
        ({"/app/a": "../../../etc"}, "/app/a", "/etc"),
        ({"/app/a": "a"}, "/app/a", "/"),
        ({"/app/a": "/app/./b//c"}, "/app/a", "/app/b/c"),
    ],
)
def test_links_are_followed_as_far_as_they_are_known(links: dict[str, str], path: str, leads_to: str) -> None:
    assert resolve_links(path, links) == leads_to


def test_an_editable_installation_stays_and_code_in_a_pth_does_not() -> None:
    site = "/usr/lib/python3/dist-packages"
    files = {
        f"{site}/own.pth": kept("/app/src\n"),
        f"{site}/bad.pth": kept("/app\nimport os\n"),
        f"{site}/out.pth": kept("/tmp"),
    }
    judged = judge(Survey(), Survey(found=list(files), files=files), HardeningConfig(), "/app")
    assert set(judged.remove) == {f"{site}/bad.pth", f"{site}/out.pth"}
    assert [finding.path for finding in judged.found] == [f"{site}/own.pth"]


def test_a_file_that_was_removed_is_put_back() -> None:
    before = Survey(found=["/app/setup.cfg"], files={"/app/setup.cfg": kept("x")})
    assert set(judge(before, Survey(), HardeningConfig(), "/app").restore) == {"/app/setup.cfg"}
    off = HardeningConfig(restore_build_files=False)
    assert judge(before, Survey(), off, "/app").restore == {}


def test_names_mean_something_only_where_they_are_read() -> None:
    assert not is_relevant("/app/models/net.pth")
    assert is_relevant("/app/.venv/lib/python3.12/site-packages/net.pth")
    assert not is_relevant("/app/sitecustomize_notes.md") and is_relevant("/app/sitecustomize.pyc")


def test_packages_that_were_installed_keep_their_conftests() -> None:
    found = ["/app/.venv/lib/python3.12/site-packages/numpy/conftest.py", "/app/tests/conftest.py"]
    assert list(judge(Survey(), Survey(found=found), HardeningConfig(), "/app").remove) == found[1:]


# --- repositories --------------------------------------------------------------------------------------

REPOSITORY = """[core]
\trepositoryformatversion = 0
\tbare = false
[user]
\tname = A Person
[remote "origin"]
\turl = https://example.org/project.git
\tfetch = +refs/heads/*:refs/remotes/origin/*
[branch "main"]
\tremote = origin
\tmerge = refs/heads/main
; said by hand
[alias]
\tst = status
[diff]
\trenames = true
"""


def test_settings_that_people_make_stay() -> None:
    assert filter_git_settings(REPOSITORY, "") == REPOSITORY


@pytest.mark.parametrize(
    "setting",
    [
        "[diff]\n\texternal = /app/x\n",
        "[diff] external = /app/x\n",
        "[DIFF]external=/app/x\n",
        '[diff "any"]\n\tcommand = x\n\ttextconv = x\n',
        "[diff.any]\n\ttextconv = x\n",
        '[filter "any"]\n\tclean = x\n\tsmudge = x\n\tprocess = x\n',
        "[core]\n\tsshCommand = x\n\tfsmonitor = x\n\thooksPath = x\n\tpager = x\n\teditor = x\n\tgitProxy = x\n",
        "[core]\n\tworktree = /tests\n",
        "[credential]\n\thelper = !x\n",
        '[credential "https://example.org"]\n\thelper = !x\n',
        "[gpg]\n\tprogram = x\n",
        "[include]\n\tpath = /app/more\n",
        '[includeIf "gitdir:/"]\n\tpath = /app/more\n',
        "[uploadpack]\n\tpackObjectsHook = x\n",
        '[remote "origin"]\n\tuploadpack = x\n\tvcs = x\n',
        '[submodule "any"]\n\tupdate = !x\n',
        '[merge "any"]\n\tdriver = x\n',
        "[pager]\n\tdiff = x\n",
        "[user]\n\tname = A\\\n[diff]\n\texternal = x\n",
    ],
)
def test_settings_by_which_git_runs_programs_do_not_unless_they_were_there(setting: str) -> None:
    left = filter_git_settings(REPOSITORY + setting, REPOSITORY)
    assert left.startswith(REPOSITORY)
    assert not any(line.startswith("\t") for line in left.removeprefix(REPOSITORY).splitlines())
    assert "= x" not in left and "/app" not in left
    if "\\" not in setting and "\n\t" in setting:
        assert filter_git_settings(REPOSITORY + setting, setting) == REPOSITORY + setting


def test_a_repository_keeps_its_settings_and_does_not_lead_elsewhere() -> None:
    files = {
        "/app/.git/config": kept(REPOSITORY + "[diff]\n\texternal = x\n"),
        "/app/same/.git/config": kept("[diff]\n\texternal = x\n"),
        "/app/mine/.git/config": kept(REPOSITORY),
        "/app/part/.git": kept("gitdir: ../.git/modules/part\n"),
        "/app/away/.git": kept("gitdir: /tmp/other\n\n"),
        "/app/.git/commondir": kept("../../tmp/other"),
    }
    same = "/app/same/.git/config"
    before = Survey(files={same: files[same]}, git=[same])
    judged = judge(before, Survey(files=files, git=[*files, "/app/link/.git"]), HardeningConfig(), "/app")
    assert set(judged.remove) == {"/app/away/.git", "/app/.git/commondir", "/app/link/.git"}
    assert set(judged.restore) == {"/app/.git/config"}
    assert judged.restore["/app/.git/config"][1].content == REPOSITORY + "[diff]\n"


def test_settings_of_a_repository_that_a_link_has_replaced_are_restored() -> None:
    """Within `.git`, where no link leads out of the workspace, to settings that name a program."""
    config = "/app/.git/config"
    before, now = Survey(files={config: kept(REPOSITORY)}, git=[config]), Survey(git=[config])
    judged = judge(before, now, HardeningConfig(), "/app")
    assert judged.restore[config][1].content == REPOSITORY and not judged.remove


# --- modules -------------------------------------------------------------------------------------------


def test_a_journal_without_a_database_is_taken_out() -> None:
    before, now = Survey(orphans=["/app/a.db-wal"]), Survey(orphans=["/app/a.db-wal", "/app/b.db-journal"])
    judged = judge(before, now, HardeningConfig(), "/app")
    assert judged.remove == {"/app/b.db-journal": "remove_escaping_links"}
    assert get_weight("remove_escaping_links", "/app/b.db-journal") == "note"
    # A link is no journal, whatever its name.
    assert get_weight("remove_escaping_links", "/app/b.db-journal", "/tests/expected.txt") == "tampering"


@pytest.mark.parametrize("path", ["/etc/default/locale", "/etc/locale.conf"])
def test_the_systems_language_may_be_set_and_nothing_else_there(path: str) -> None:
    language = "# by hand\nLANG=de_DE.UTF-8\nexport LC_ALL=C\n\n"
    set_up = judge(Survey(), Survey(found=[path], files={path: kept(language)}), HardeningConfig(), "/app")
    assert (set_up.remove, set_up.restore) == ({}, {})
    more = Survey(found=[path], files={path: kept(f"{language}PYTEST_ADDOPTS=--co\nOLD=1\n")})
    new = judge(Survey(), more, HardeningConfig(), "/app")
    assert new.restore[path][1].content == language
    before = Survey(found=[path], files={path: kept("OLD=1\n")})
    changed = judge(before, more, HardeningConfig(), "/app")
    assert changed.restore[path][1].content == f"{language}OLD=1\n"
    link = judge(Survey(), Survey(found=[path]), HardeningConfig(), "/app")
    assert link.remove == {path: "restore_build_files"}


def test_of_the_settings_of_logins_those_that_set_variables_stay_as_they_were() -> None:
    path, was = "/etc/login.defs", "UMASK 022\nENV_PATH PATH=/usr/bin\n"
    before = Survey(found=[path], files={path: kept(was)})

    def judged(content: str, before: Survey = before) -> str | None:
        now = Survey(found=[path], files={path: kept(content)})
        restored = judge(before, now, HardeningConfig(), "/app").restore
        return restored[path][1].content if restored else None

    assert judged("UMASK 077\nENV_PATH PATH=/usr/bin\nPASS_MAX_DAYS 90\n") is None
    assert judged("UMASK 077\nENV_PATH PATH=/tmp\nALWAYS_SET_PATH yes\n") == "UMASK 077\nENV_PATH PATH=/usr/bin\n"
    assert judged("UMASK 077\n") == "UMASK 077\nENV_PATH PATH=/usr/bin\n"
    assert judged("UMASK 077\nENV_SUPATH PATH=/tmp\n", Survey()) == "UMASK 077\n"


def test_a_module_that_is_new_where_python_looks_first_is_taken_out_by_its_name_alone() -> None:
    found = ["/app/textwrap.py", "/app/json/__init__.pyc", "/app/_struct.cpython-312.so", "/app/statistics.py"]
    assert [path for path in found if is_shadowing(path)] == found[:3]
    before = Survey(top=["/app/types.py"])
    judged = judge(before, Survey(top=["/app/textwrap.py", "/app/types.py"]), HardeningConfig(), "/app")
    assert judged.remove == {"/app/textwrap.py": "cleanup_python_hooks"} and judged.restore == {}
