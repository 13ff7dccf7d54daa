"""Root file systems of other Debian releases, made once a machine, for tests that need another release's programs."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from support.paths import ROOT

from benchflow.host_files import hold_lock

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "benchflow-test"


@functools.cache
def debian_root(release: str, package: str) -> Path:
    """Return the root directory of a Debian release that has a package, made with debootstrap if it is not there.

    Skips the test where it can't be made. DEBOOTSTRAP_MIRROR may name a mirror.
    """
    root = CACHE / f"{release}-{package}"
    CACHE.mkdir(parents=True, exist_ok=True)
    with hold_lock(CACHE / f"{root.name}.lock"):
        if not root.exists():
            _make(root, release, package)
    return root


def _make(root: Path, release: str, package: str) -> None:
    if os.geteuid() != 0:
        pytest.skip(f"no {package} of Debian {release}: debootstrap needs root")
    needed = subprocess.run([ROOT / "tools/need", "debootstrap=debootstrap"], capture_output=True, text=True)
    if needed.returncode != 0:
        pytest.skip(f"no {package} of Debian {release}: {needed.stderr.strip()[-1000:]}")
    made = Path(tempfile.mkdtemp(prefix=f"{root.name}.", dir=CACHE))
    try:
        mirror = [address] if (address := os.environ.get("DEBOOTSTRAP_MIRROR")) else []
        command = ["debootstrap", "--variant=minbase", f"--include={package}", release, made / "root", *mirror]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            pytest.skip(f"no {package} of Debian {release}: debootstrap failed: {done.stdout[-1000:]}")
        # Whole or not there: a test run may be killed.
        (made / "root").rename(root)
    finally:
        shutil.rmtree(made)
