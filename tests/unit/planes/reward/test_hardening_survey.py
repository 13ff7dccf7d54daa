"""Surveys of a sandbox: an archive that is gone is no sandbox in which nothing was found."""

from __future__ import annotations

import pytest
from support.idle_sandbox import IdleSandbox

from benchflow.contracts.sandbox import SandboxRef
from benchflow.errors import VerifierError
from benchflow.planes.reward.hardening.survey import ARCHIVE, Survey, take_survey


class _Watched(IdleSandbox):
    """A sandbox in which a process removes the archive as soon as it is written."""

    async def read_bytes(self, path: str) -> bytes:
        raise FileNotFoundError(path)


def ref() -> SandboxRef:
    return SandboxRef(provider="idle", name="bf-1", handle="1", queue="", host_id="", workdir="/app")


async def test_an_archive_that_is_gone_is_an_error() -> None:
    with pytest.raises(VerifierError, match="gone before it could be read"):
        await take_survey(_Watched(ref()), home="/root", path="/bin")


async def test_a_provider_that_runs_no_scripts_has_an_empty_one() -> None:
    assert ARCHIVE.startswith("/run/benchflow/")
    assert await take_survey(IdleSandbox(ref()), home="/root", path="/bin") == Survey()
