"""Surveys of a sandbox: an archive that is gone is no sandbox in which nothing was found."""

from __future__ import annotations

import io
import tarfile

import pytest
from support.idle_sandbox import IdleSandbox

from benchflow.contracts.sandbox import SandboxRef
from benchflow.errors import SandboxError, VerifierError
from benchflow.planes.reward.hardening.survey import ARCHIVE, Survey, make_empty_archive, take_survey


class _Watched(IdleSandbox):
    """A sandbox in which a process does something to the archive as soon as it is written."""

    def __init__(self, ref: SandboxRef, found: Exception) -> None:
        super().__init__(ref)
        self._found = found

    async def read_bytes(self, path: str) -> bytes:
        raise self._found


def ref() -> SandboxRef:
    return SandboxRef(provider="idle", name="bf-1", handle="1", queue="", host_id="", workdir="/app")


async def test_an_archive_that_is_gone_is_an_error() -> None:
    with pytest.raises(VerifierError, match="gone before it could be read"):
        await take_survey(_Watched(ref(), FileNotFoundError(ARCHIVE)), home="/root", path="/bin")


async def test_an_archive_that_is_too_large_is_the_verifiers_error_and_not_the_sandboxs() -> None:
    """With that of a sandbox the rollout would be run again: another attempt for whoever knows that it has failed."""
    found = SandboxError(f"{ARCHIVE} is larger than 64 MiB")
    with pytest.raises(VerifierError, match=r"could not be read: .* is larger") as raised:
        await take_survey(_Watched(ref(), found), home="/root", path="/bin")
    assert not raised.value.retryable


async def test_a_provider_that_runs_no_scripts_has_an_empty_one() -> None:
    assert ARCHIVE.startswith("/run/benchflow/")
    assert await take_survey(IdleSandbox(ref()), home="/root", path="/bin") == Survey()


class _Filled(IdleSandbox):
    """A sandbox in which a survey finds lists with this content."""

    def __init__(self, ref: SandboxRef, **lists: bytes) -> None:
        super().__init__(ref)
        self._lists = lists

    async def read_bytes(self, path: str) -> bytes:
        with io.BytesIO(make_empty_archive()) as packed:
            with tarfile.open(fileobj=packed, mode="a") as archive:
                for name, content in self._lists.items():
                    member = tarfile.TarInfo(name)
                    member.size = len(content)
                    archive.addfile(member, io.BytesIO(content))
            return packed.getvalue()


async def test_a_link_without_a_target_does_not_shift_the_pairs_after_it() -> None:
    links = b"/app/one\0\0/app/two\0/tests/answer\0"
    survey = await take_survey(_Filled(ref(), links=links), home="/root", path="/bin")
    assert survey.links == {"/app/one": "", "/app/two": "/tests/answer"}


async def test_a_name_that_was_cut_off_is_none() -> None:
    survey = await take_survey(_Filled(ref(), temporary=b"/tmp/a\0/tmp/cut"), home="/root", path="/bin")
    assert survey.temporary == ["/tmp/a"]
