"""What travels between workflows and activities, by size."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchflow.contracts.activities import OpenRollouts
from benchflow.contracts.base import MAX_INLINE_BYTES, MAX_MESSAGE_BYTES
from benchflow.errors import MissingArtifactError, StackError
from benchflow.messages import make_converter

SMALL = OpenRollouts(ids=["x" * 1000])
LARGE = OpenRollouts(ids=["x" * MAX_INLINE_BYTES])


def test_a_message_that_no_server_takes_is_refused_before_it_is_sent() -> None:
    converter = make_converter().payload_converter
    converter.to_payloads([SMALL])
    with pytest.raises(StackError, match="OpenRollouts") as caught:
        converter.to_payloads([OpenRollouts(ids=["x" * MAX_MESSAGE_BYTES])])
    assert "store" in str(caught.value.remedy)


async def test_a_large_payload_travels_by_reference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BENCHFLOW_STORE", str(tmp_path))
    sent = await make_converter().encode([SMALL, LARGE])
    assert len(sent[0].data) > 1000 > len(sent[1].data)
    assert await make_converter().decode(sent, [OpenRollouts, OpenRollouts]) == [SMALL, LARGE]
    (blob,) = (path for path in tmp_path.rglob("*") if path.is_file())
    assert blob.relative_to(tmp_path).parts[0] == "bulk"
    blob.unlink()
    with pytest.raises(MissingArtifactError):
        await make_converter().decode(sent, [OpenRollouts, OpenRollouts])
