"""What tools of a verifier would take from files of the workspace: archives, build files, an index of git."""

from __future__ import annotations

import hashlib
import io
import json
import struct
import tarfile
import zipfile

import pytest

from benchflow.planes.reward.hardening.build_files import (
    filter_attributes,
    filter_package_scripts,
    has_variable_include,
    list_includes,
    list_undeclared_targets,
)
from benchflow.planes.reward.hardening.escaping_archives import find_escaping_member
from benchflow.planes.reward.hardening.git_index import clear_flags, list_flagged_paths


def tar(*members: tuple[str, str | None], mode: str = "w") -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode=mode) as archive:  # type: ignore[call-overload]
        for name, target in members:
            info = tarfile.TarInfo(name)
            if target is not None:
                info.type, info.linkname = tarfile.SYMTYPE, target
            archive.addfile(info)
    return packed.getvalue()


def zipped(name: str, target: str) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        info = zipfile.ZipInfo(name)
        info.external_attr = 0o120777 << 16
        archive.writestr(info, target)
    return packed.getvalue()


@pytest.mark.parametrize(
    ("content", "member"),
    [
        (tar(("a", None), ("b/c", None), ("b/d", "c")), None),
        (tar(("usr/bin/awk", "/etc/alternatives/awk"), ("lib", "usr/lib")), None),
        (tar(("a/b", "../c"), mode="w:gz"), None),
        (tar(("a", None), ("../tests/expected", None)), "../tests/expected"),
        (tar(("/tests/expected", None), mode="w:xz"), "/tests/expected"),
        (tar(("a", "/srv"), ("a/b", None)), "a/b"),
        (tar(("answer", "/tests/expected"), mode="w:bz2"), "answer -> /tests/expected"),
        (tar(("a/answer", "../../tests/x")), "a/answer -> ../../tests/x"),
        (zipped("answer", "/tests/expected"), "answer -> /tests/expected"),
        (zipped("answer", "other"), None),
        (b"no archive", None),
    ],
    # Not by their content: a compressed archive says when it was made, and each test process makes its own.
    ids=[
        "nothing-leads-out",
        "link-of-the-system",
        "link-inside-compressed",
        "file-above",
        "file-of-the-root-compressed",
        "file-by-a-link",
        "link-compressed",
        "link-above",
        "zipped-link",
        "zipped-link-inside",
        "no-archive",
    ],
)
def test_an_archive_that_leads_out_is_known_by_its_first_such_member(content: bytes, member: str | None) -> None:
    assert find_escaping_member(content) == member


def test_files_that_a_makefile_or_a_configuration_of_git_includes_are_known() -> None:
    text = "include rules.mk  other.inc # more\n-include local.mk\ninclude $(wildcard *.mk)\nall:\n\techo include x\n"
    assert list(list_includes("/app/Makefile", text)) == ["/app/rules.mk", "/app/other.inc", "/app/local.mk"]
    assert has_variable_include("/app/Makefile", text)
    assert not has_variable_include("/app/Makefile", "include rules.mk\n")
    assert list(list_includes("/app/notes.txt", text)) == []
    config = "[include]\n\tpath = ../team.gitconfig\n\tpath = ~/own\n"
    assert list(list_includes("/app/.git/config", config)) == ["/app/team.gitconfig"]


def test_a_package_keeps_its_scripts_and_takes_new_dependencies() -> None:
    before = json.dumps({"scripts": {"test": "jest"}, "jest": {"a": 1}})
    wanted = {"scripts": {"test": "true", "pretest": "evil", "lint": "eslint"}, "dependencies": {"a": "1"}, "jest": {}}
    found = json.loads(filter_package_scripts(json.dumps(wanted), before) or "")
    assert found == {"dependencies": {"a": "1"}, "jest": {"a": 1}, "scripts": {"lint": "eslint", "test": "jest"}}
    same = json.dumps({"scripts": {"test": "jest", "lint": "eslint"}, "jest": {"a": 1}})
    assert filter_package_scripts(same, before) == same
    for garbage in ("[]", "{", '{"scripts": 1}'):
        assert filter_package_scripts(garbage, before) is None


def test_attributes_of_git_name_no_new_program() -> None:
    text = "*.c text\n*.py filter=stamp\n*.bin filter=lfs diff=lfs merge=lfs -text\n*.x diff=own\n"
    assert (
        filter_attributes(text, "*.x diff=own\n")
        == "*.c text\n*.bin filter=lfs diff=lfs merge=lfs -text\n*.x diff=own\n"
    )


def index(*entries: tuple[str, int, int | None], version: int = 3) -> bytes:
    """Return an index of git's. entries: path, flags, and extended flags."""
    packed = b"DIRC" + struct.pack(">II", version, len(entries))
    for path, flags, more in entries:
        name = path.encode()
        entry = bytes(40) + hashlib.sha1(name).digest() + struct.pack(">H", flags | len(name))
        entry += struct.pack(">H", more) if more is not None else b""
        entry += name
        packed += entry + bytes(8 - len(entry) % 8)
    return packed + hashlib.sha1(packed).digest()


def test_flags_by_which_git_overlooks_changes_are_taken_out_of_an_index() -> None:
    flagged = index(("a", 0x8000, None), ("b/c", 0x4000, 0x4000), ("d", 0x4000, 0x2000), ("e", 0, None))
    assert list_flagged_paths(flagged) == ["a", "b/c"]
    cleaned = clear_flags(flagged, ["a"])
    assert list_flagged_paths(cleaned) == ["a"]
    assert cleaned[-20:] == hashlib.sha1(cleaned[:-20]).digest()
    # What is added to be committed later stays so.
    assert cleaned == index(("a", 0x8000, None), ("b/c", 0x4000, 0), ("d", 0x4000, 0x2000), ("e", 0, None))


@pytest.mark.parametrize("content", [b"", b"DIRC", index(("a", 0, None))[:-1], index(("a", 0x4000, 0), version=2)])
def test_what_is_no_index_is_told_from_one(content: bytes) -> None:
    assert list_flagged_paths(content) is None


def test_files_that_would_keep_make_from_a_rule_are_those_that_no_rule_makes() -> None:
    text = "app: main.c\n\tcc main.c -o app\ncheck lint:\n\tpytest\n.PHONY: lint\n"
    text += "out:\n\ttouch $@\nempty: app\nA := b\n"
    assert list(list_undeclared_targets("/app/Makefile", text)) == ["/app/check"]
    assert list(list_undeclared_targets("/app/rules.mk", text)) == []
