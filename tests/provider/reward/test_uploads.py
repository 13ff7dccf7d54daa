"""The verifier's own files after it has run: what was changed of them meanwhile is found, and the reward stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.verified_sandboxes import InDocker, InLocal, verifier

from benchflow.contracts.reward import HardeningFinding
from benchflow.contracts.sandbox import Sandbox
from benchflow.errors import VerifierError

REWARDS = "echo 1 >/logs/verifier/reward.txt\n"


async def found_by(own: Sandbox, root: Path, script: str, **options: Any) -> set[tuple[str, str, str]]:
    """Return what is found of a verifier that runs `script`: path, detail and weight."""
    found: list[HardeningFinding] = []
    files = {"test.sh": f"#!/bin/sh\n{script}\n{REWARDS}exit 0\n# the end", "data/key.txt": "7", "grade.py": "#"}
    one = verifier(root / "tests", files, trusted=True, report=found.extend, **options)
    assert (await one.run(own, root / "logs")).reward == 1.0
    return {(finding.path, finding.detail, finding.weight) for finding in found}


class Uploads:
    async def test_a_script_that_was_changed_while_it_ran_is_tampering(self, own: Sandbox, tmp_path: Path) -> None:
        rewritten = "printf '# the END' | dd of=/tests/test.sh bs=1 seek=$(($(wc -c </tests/test.sh) - 9)) conv=notrunc"
        script = ("/tests/test.sh", "was changed while the verifier ran", "tampering")
        assert await found_by(own, tmp_path, rewritten) == {script}

    async def test_what_a_verifier_writes_beside_its_script_is_no_tampering(self, own: Sandbox, tmp_path: Path) -> None:
        works = "cd /tests; echo 8 >data/key.txt; rm grade.py; mkdir grade.py; echo >made.txt"
        changed = "was changed while the verifier ran"
        notes = {("/tests/data/key.txt", changed, "note"), ("/tests/grade.py", changed, "note")}
        assert await found_by(own, tmp_path, works) == notes

    async def test_a_verifier_that_removes_its_files_is_no_tampering(self, own: Sandbox, tmp_path: Path) -> None:
        gone = "was removed while the verifier ran"
        names = ("test.sh", "grade.py", "data/key.txt")
        assert await found_by(own, tmp_path, "rm -r /tests") == {(f"/tests/{name}", gone, "note") for name in names}

    async def test_a_program_that_a_command_names_is_a_script_that_runs(self, own: Sandbox, tmp_path: Path) -> None:
        strategy = {"type": "script", "command": "sh ./grade.py; echo more >>grade.py; sh test.sh"}
        program = ("/tests/grade.py", "was changed while the verifier ran", "tampering")
        assert await found_by(own, tmp_path, ":", strategy=strategy) == {program}

    async def test_what_is_as_it_was_is_not_found_nor_what_the_task_lifts(self, own: Sandbox, tmp_path: Path) -> None:
        assert await found_by(own, tmp_path / "same", "chmod 700 /tests/grade.py") == set()
        lifted = {"hardening": {"verify_tools": False}}
        assert await found_by(own, tmp_path / "off", "echo >>/tests/test.sh", config=lifted, key="off") == set()

    async def test_what_a_verifier_that_failed_has_changed_is_found_too(self, own: Sandbox, tmp_path: Path) -> None:
        found: list[HardeningFinding] = []
        script = "#!/bin/sh\necho '# more' >>/tests/test.sh\nkill -9 $$\n"
        one = verifier(tmp_path / "tests", {"test.sh": script}, trusted=True, report=found.extend)
        with pytest.raises(VerifierError, match="was killed"):
            await one.run(own, tmp_path / "logs")
        assert [finding.path for finding in found] == ["/tests/test.sh"]


@pytest.mark.local
class TestUploads(Uploads, InLocal):
    pass


@pytest.mark.docker
@pytest.mark.long
class TestUploadsInDocker(Uploads, InDocker):
    pass
