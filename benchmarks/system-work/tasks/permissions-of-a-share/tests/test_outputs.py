import grp
import os
from pathlib import Path


def test_modes_and_group():
    top = Path("/srv/share")
    staff = grp.getgrnam("staff").gr_gid
    for path in (top, *top.rglob("*")):
        expected = 0o2770 if path.is_dir() else 0o770 if path.suffix == ".sh" else 0o660
        found = os.stat(path)
        assert (found.st_gid, oct(found.st_mode & 0o7777)) == (staff, oct(expected)), path
