"""What is made of two looks at a sandbox."""

from __future__ import annotations

import pytest

from benchflow.contracts.task import HardeningConfig
from benchflow.planes.reward.hardening.judgement import judge, resolve
from benchflow.planes.reward.hardening.survey import KeptFile, Survey, is_looked_for


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
    assert resolve(path, links) == leads_to


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
    assert not is_looked_for("/app/models/net.pth")
    assert is_looked_for("/app/.venv/lib/python3.12/site-packages/net.pth")
    assert not is_looked_for("/app/sitecustomize_notes.md") and is_looked_for("/app/sitecustomize.pyc")


def test_packages_that_were_installed_keep_their_conftests() -> None:
    found = ["/app/.venv/lib/python3.12/site-packages/numpy/conftest.py", "/app/tests/conftest.py"]
    assert list(judge(Survey(), Survey(found=found), HardeningConfig(), "/app").remove) == found[1:]
