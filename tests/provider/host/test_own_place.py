"""Whose a directory is, seen from a user namespace such as those of containers without root."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CHECK = """
import sys
from pathlib import Path
from benchflow.host import require_own_place
require_own_place(Path(sys.argv[1]), key="KEY")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
@pytest.mark.parametrize(("namespace", "message"), [([], "belongs to user 4711"), (["unshare", "--map-root-user"], "")])
def test_a_user_of_outside_is_no_stranger(namespace: list[str], message: str, tmp_path: Path) -> None:
    os.chown(tmp_path, 4711, 4711)
    tmp_path.chmod(0o755)
    command = [*namespace, sys.executable, "-c", CHECK, str(tmp_path / "state")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode != 0, message in ended.stderr) == (bool(message), True), ended.stderr
