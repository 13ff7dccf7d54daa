"""The local provider over a ready image, which a Docker daemon has, against the suite of every provider."""

from __future__ import annotations

import pytest
from support.local_sandboxes import LOCAL, Economical

from benchflow.testing.sandbox_conformance import (
    CommandTests,
    DownloadTests,
    ExactlyOnceTests,
    FileTests,
    ForkTests,
    LimitTests,
    NetworkTests,
    PackTests,
    PrivacyTests,
    ProcessTests,
    SnapshotTests,
    TimeoutTests,
    UploadTests,
)


@pytest.mark.asyncio
@pytest.mark.local
@pytest.mark.docker
@pytest.mark.long
class TestLocalOverAnImage(
    Economical,
    CommandTests,
    DownloadTests,
    TimeoutTests,
    ExactlyOnceTests,
    FileTests,
    ForkTests,
    LimitTests,
    NetworkTests,
    PackTests,
    PrivacyTests,
    ProcessTests,
    SnapshotTests,
    UploadTests,
):
    """The themes that have to do with what lies below a sandbox's own files; the others are as over the host."""

    provider_path = LOCAL
