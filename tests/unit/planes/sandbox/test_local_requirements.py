"""What a machine must be for sandboxes on it itself."""

from __future__ import annotations

import pytest

from benchflow.errors import SandboxUnavailableError
from benchflow.planes.sandbox.local.requirements import require_one_root, require_platform

MOUNTS = """22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
23 22 0:21 / /proc rw - proc proc rw
24 22 254:1 / {} rw,relatime - ext4 /dev/vdb rw
"""


def test_the_local_sandbox_needs_linux_and_root() -> None:
    with pytest.raises(SandboxUnavailableError, match="Linux"):
        require_platform("darwin", 0)
    with pytest.raises(SandboxUnavailableError, match="root") as caught:
        require_platform("linux", 1000)
    assert "--sandbox docker" in str(caught.value.remedy)


@pytest.mark.parametrize("path", ["/usr", "/var", "/etc", "/var/lib"])
def test_a_machine_in_several_pieces_is_refused(path: str) -> None:
    with pytest.raises(SandboxUnavailableError, match=f"{path} is a file system of its own") as caught:
        require_one_root(MOUNTS.format(path))
    assert "--sandbox docker" in str(caught.value.remedy)


@pytest.mark.parametrize("path", ["/var/lib/docker", "/home", "/data", "/usr/local/models"])
def test_other_file_systems_do_not_matter(path: str) -> None:
    require_one_root(MOUNTS.format(path))
