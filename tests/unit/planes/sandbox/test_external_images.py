"""The images that a Dockerfile takes files from, found in its text: an image that moves makes another build."""

from __future__ import annotations

import pytest

from benchflow.errors import UnsupportedFeatureError
from benchflow.planes.sandbox.external_images import ExternalImage, find_external_images


def names(text: str, **arguments: str) -> list[str]:
    return [image.name for image in find_external_images(text, "environment/Dockerfile", arguments)]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("FROM a", ["a"]),
        ("\ufefffrom a:1 as it", ["a:1"]),
        ("FROM a@sha256:00", ["a@sha256:00"]),
        ("FROM registry:5000/a\nRUN FROM b", ["registry:5000/a"]),
        ("FROM scratch\nCOPY --from=a /x /y", ["a"]),
        ("FROM a\nFROM a:1\nFROM a", ["a", "a:1"]),
        ("FROM a AS One\nFROM b\nCOPY --from=one /x /y\nFROM ONE", ["a", "b"]),
        ("FROM a AS one\nFROM b\nCOPY --from=0 /x /y", ["a", "b"]),
        ("FROM a\nCOPY --from=b /x /y\nFROM c AS b", ["a", "b", "c"]),
        ("FROM a\nCOPY --chown=1 \\\n  # why\n\n  --from=b --link /x /y", ["a", "b"]),
        ("FROM a\nCOPY --from=b --chown=1 x /", ["a", "b"]),
        ("FROM a\nRUN --mount=type=bind,from=b,target=/b --mount=type=cache,target=/c true", ["a", "b"]),
        (
            "FROM a\nRUN --mount=type=bind,target=/b,from=c --network=none --mount=from=d,target=/d true",
            ["a", "c", "d"],
        ),
        ("FROM a AS one\nFROM b\nRUN --mount=from=one,target=/x true", ["a", "b"]),
        ("FROM a\nRUN echo --mount=from=b", ["a"]),
        ("FROM a\nRUN <<E\nFROM b\nCOPY --from=c / /\nE\n", ["a"]),
        ("# escape=`\nFROM `\n  a", ["a"]),
        ("FROM \\\n  # why\n\n  a \\\n  AS it\nRUN x", ["a"]),
        ("ARG ONE=x\nARG ALL=${ONE:-y}:1\nFROM ${ALL}", ["x:1"]),
        ("ARG A=x\nFROM $A\nARG A=y\nFROM $A", ["x"]),
        ("FROM ${A:-x}\nFROM '${A}'", ["x", "${A}"]),
        ("FROM $UNKNOWN", []),
        ("ARG A=${B#x}\nFROM a", ["a"]),
        ("FROM a-$TARGETARCH", ["a-amd64"]),
        ("", []),
    ],
)
def test_each_image_is_found_by_its_name_and_no_stage_is_one(text: str, found: list[str]) -> None:
    assert names(text, TARGETARCH="amd64") == found


def test_an_image_of_another_platform_is_another_one() -> None:
    text = "FROM --platform=$BUILDPLATFORM a\nFROM --platform=linux/arm64 a\nFROM a\nCOPY --from=a / /\n"
    found = find_external_images(text, "Dockerfile", {"BUILDPLATFORM": "linux/amd64"})
    assert found == [
        ExternalImage("a", "linux/amd64"),
        ExternalImage("a", "linux/arm64"),
        ExternalImage("a", None),
    ]


@pytest.mark.parametrize(
    ("text", "word", "said"),
    [
        ("FROM ${A#x}", "FROM", "line 1"),
        ("ARG A=${B#x}\nFROM $A", "FROM", "line 2"),
        ("FROM ${A:?needed}", "FROM", "line 1"),
        ("FROM a\nCOPY --from=$A / /", "COPY", "line 2"),
        ("FROM a\n\nRUN --mount=type=bind,from=$A,target=/x true", "RUN", "line 3"),
    ],
)
def test_a_name_that_only_the_builder_can_tell_is_refused(text: str, word: str, said: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match=said) as caught:
        names(text)
    assert (caught.value.key, caught.value.file) == (word, "environment/Dockerfile")
    assert caught.value.remedy is not None and "FROM" in caught.value.remedy
