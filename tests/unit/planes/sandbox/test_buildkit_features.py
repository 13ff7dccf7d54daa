"""What in a Dockerfile only BuildKit can carry out."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchflow.contracts.images import ImageConfig
from benchflow.planes.sandbox.build_context import read_context


def features(step: str, root: Path) -> list[str]:
    (root / "nonce").touch()
    (root / "Dockerfile").write_text(f"FROM debian\nCOPY nonce /nonce\n{step}\n")
    return read_context(ImageConfig(context=str(root))).list_buildkit_features()


@pytest.mark.parametrize(
    ("step", "named"),
    [
        ("RUN --mount=type=cache,target=/c true", "RUN --mount"),
        ("RUN --network=none \\\n  --mount=type=tmpfs,target=/t true", "RUN --mount"),
        ("COPY --chmod=755 nonce /n", "COPY/ADD --chmod"),
        ("COPY --chown=0:0 --link nonce /n", "COPY/ADD --link"),
        ("RUN <<EOF\ntrue\nEOF", "a here-document"),
        ("COPY <<-'FILE' /n\nx\nFILE", "a here-document"),
    ],
)
def test_what_only_buildkit_can_do_is_recognised(step, named, tmp_path):
    assert named in features(step, tmp_path)


@pytest.mark.parametrize(
    "step",
    [
        "RUN cat <<< x",
        "# syntax=docker/dockerfile:1",
        "COPY --chown=0:0 nonce /n",
        "RUN echo --mount",
        "RUN echo $((1<<2))",
    ],
)
def test_what_every_builder_can_do_is_not_taken_for_it(step, tmp_path):
    assert features(step, tmp_path) == []
