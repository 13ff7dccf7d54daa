"""Images that a Dockerfile builds upon: where their names are found in its text, and what that does to the digest."""

from __future__ import annotations

import pytest

from benchflow.planes.sandbox.bases import find_base, resolve_bases

BASES = {"world": "REF:1"}


@pytest.mark.parametrize(
    ("text", "resolved"),
    [
        ("FROM world\nRUN x", "FROM REF:1\nRUN x"),
        ("from world:latest as it", "from REF:1 as it"),
        ("\ufeffFROM world", "\ufeffFROM REF:1"),
        ("FROM --platform=linux world AS it\n", "FROM --platform=linux REF:1 AS it\n"),
        ("FROM \\\n  # why\n\n  world \\\n  AS it\nRUN x", "FROM \\\n  # why\n\n  REF:1 \\\n  AS it\nRUN x"),
        ("# escape=`\nFROM `\n  world", "# escape=`\nFROM `\n  REF:1"),
        ('ARG NAME=wor\nARG ALL="${NAME}ld"\nFROM $ALL', 'ARG NAME=wor\nARG ALL="${NAME}ld"\nFROM REF:1'),
        ("FROM x AS one\nFROM world\nCOPY --from=one /a /b", "FROM x AS one\nFROM REF:1\nCOPY --from=one /a /b"),
        ("FROM x\nCOPY --chown=1 --from=world /a /b", "FROM x\nCOPY --chown=1 --from=REF:1 /a /b"),
        ("FROM x\nRUN <<E\nFROM y\nE\nFROM world", "FROM x\nRUN <<E\nFROM y\nE\nFROM REF:1"),
        ("FROM x\nRUN echo $((1<<N))\nFROM world", "FROM x\nRUN echo $((1<<N))\nFROM REF:1"),
    ],
)
def test_a_name_is_replaced_wherever_it_stands_for_an_image(text: str, resolved: str) -> None:
    found = resolve_bases(text, BASES)
    assert found.text == resolved
    assert found.used == {"world:latest": "REF:1"}


@pytest.mark.parametrize(
    "text",
    [
        "FROM world:1",
        "FROM world@sha256:00",
        "FROM registry:5000/world",
        "FROM other\nRUN <<E\nFROM world\nE\n",
        "FROM other\nRUN echo \\\nFROM world\n",
        "# FROM world\nFROM other",
        "FROM other AS world\nFROM world\nCOPY --from=world /a /b",
        "FROM $UNKNOWN",
        "FROM ${A:?needed}",
        "COPY --from",
        "",
    ],
)
def test_what_is_another_image_or_none_is_left_alone(text: str) -> None:
    found = resolve_bases(text, BASES)
    assert (found.text, found.used) == (text, {})


def test_a_name_with_a_port_and_no_tag_is_the_latest_too() -> None:
    assert find_base({"registry:5000/a": 1}, "registry:5000/a:latest") == 1
    assert find_base({"a:2": 1}, "a") is None


def test_only_a_base_that_is_used_makes_another_image() -> None:
    used, unused = resolve_bases("FROM world", BASES), resolve_bases("FROM other", BASES)
    assert unused.extend_digest("own") == "own"
    changed = resolve_bases("FROM world", {"world": "REF:2"})
    assert len({"own", used.extend_digest("own"), changed.extend_digest("own"), used.extend_digest("other")}) == 4
