"""`tools/peers`: environments of foreign packages, apart from ours."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.harbor_peer import peer
from support.paths import ROOT

pytestmark = pytest.mark.peers


def run_peers(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, ROOT / "tools" / "peers", *arguments]
    return subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)


def test_an_environment_is_made_once_and_is_not_ours() -> None:
    interpreter = peer("harbor")
    again = run_peers("harbor")
    assert (again.returncode, again.stdout.strip(), again.stderr) == (0, interpreter, "")
    assert Path(interpreter).is_file() and not Path(interpreter).is_relative_to(sys.prefix)
    subprocess.run([interpreter, "-c", "import harbor, sys; assert sys.version_info >= (3, 12)"], check=True)
    assert importlib.util.find_spec("harbor") is None, "foreign packages have environments of their own"


def test_without_a_python_that_is_new_enough_the_error_says_what_to_do(tmp_path: Path) -> None:
    program = tmp_path / "python3"
    program.write_text("#!/bin/sh\necho 3 9\n")
    program.chmod(0o755)
    told = run_peers("harbor", BENCHFLOW_PEERS_DIR=str(tmp_path / "peers"), BENCHFLOW_PEERS_PYTHON=str(program))
    assert told.returncode == 1 and told.stdout == ""
    assert "harbor needs Python 3.12" in told.stderr and str(program) in told.stderr
    assert "BENCHFLOW_PEERS_PYTHON=" in told.stderr and "apt-get install" in told.stderr
    assert not (tmp_path / "peers" / "harbor").exists()


def test_a_name_that_is_no_peer_is_refused() -> None:
    told = run_peers("no-such-package")
    assert told.returncode == 1 and "harbor" in told.stderr
