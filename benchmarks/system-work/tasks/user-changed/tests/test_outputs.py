import os
import pwd
from pathlib import Path


def test_account():
    account = pwd.getpwnam("report")
    assert (account.pw_uid, account.pw_shell) == (4001, "/bin/bash")


def test_files():
    below = [path for top in ("/srv/reports", "/home/report") for path in (Path(top), *Path(top).rglob("*"))]
    assert not [path for path in below if os.lstat(path).st_uid == 2001]
    assert os.stat("/srv/reports/2026/may.txt").st_uid == 4001


def test_of_others_nothing_changed():
    assert os.stat("/srv/reports/2026/shared.txt").st_uid == 0
