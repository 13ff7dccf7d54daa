"""What is said of a server that can't be connected to: the cause, and none of the SDK's own state."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchflow.errors import ServerUnavailableError
from benchflow.temporal import Target, connect

NOBODY = "127.0.0.1:1"


@pytest.mark.parametrize("cause", ["Connection refused", "No such file or directory (os error 2)"])
async def test_the_cause_is_said(tmp_path: Path, cause: str) -> None:
    socket = str(tmp_path / "none.sock") if "file" in cause else None
    with pytest.raises(ServerUnavailableError) as caught:
        await connect(Target(address=NOBODY, namespace="benchflow", embedded=True, options={}, socket=socket))
    assert caught.value.message == f"no Temporal server answers at {NOBODY}: {cause}"
