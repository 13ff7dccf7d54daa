"""The local provider over a ready image, which a Docker daemon has, against the suite of every provider."""

from __future__ import annotations

import pytest
from support.local_sandboxes import LOCAL, Economical

from benchflow.testing.sandbox_conformance import (
    Commands,
    Downloads,
    Endings,
    ExactlyOnce,
    Files,
    Forks,
    Limits,
    Networks,
    Packs,
    Privacy,
    Processes,
    Snapshots,
    Uploads,
)


@pytest.mark.asyncio
@pytest.mark.local
@pytest.mark.docker
@pytest.mark.long
class TestLocalOverAnImage(
    Economical,
    Commands,
    Downloads,
    Endings,
    ExactlyOnce,
    Files,
    Forks,
    Limits,
    Networks,
    Packs,
    Privacy,
    Processes,
    Snapshots,
    Uploads,
):
    """The themes that have to do with what lies below a sandbox's own files; the others are as over the host."""

    provider_path = LOCAL
