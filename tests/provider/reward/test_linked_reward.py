"""A reward file that is a link is an error, wherever it leads, and no other file counts in its place."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.verified_sandboxes import InLocal, verifier

from benchflow.contracts.sandbox import Sandbox
from benchflow.errors import RewardFileError, VerifierError

JSON = """#!/bin/sh
cd /logs/verifier
echo '{"reward": 1.0}' >reward.json
"""


@pytest.mark.local
class TestLinkedReward(InLocal):
    async def test_one_that_leads_out_is_an_error_also_beside_another_file(
        self, sandbox: Sandbox, tmp_path: Path
    ) -> None:
        script = f"{JSON}ln -s /dev/null reward.txt\necho 0 >reward.txt\n"
        own = verifier(tmp_path / "v", {"test.sh": script}, key="linked")
        with pytest.raises(VerifierError, match="the reward file is a link that leads out") as caught:
            await own.run(sandbox, tmp_path / "logs")
        assert caught.value.file == "/logs/verifier/reward.txt"

    async def test_one_within_its_directory_is_an_error_too(self, sandbox: Sandbox, tmp_path: Path) -> None:
        script = f"{JSON}mv reward.json said\nln -s said reward.json\n"
        own = verifier(tmp_path / "v", {"test.sh": script}, key="inner")
        with pytest.raises(RewardFileError):
            await own.run(sandbox, tmp_path / "logs")
