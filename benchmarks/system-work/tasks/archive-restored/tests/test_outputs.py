import os
import pwd


def test_pages():
    assert open("/opt/wiki/pages/start").read() == "third\n"


def test_owner_mode_and_time():
    found = os.stat("/opt/wiki/pages/start")
    assert (pwd.getpwuid(found.st_uid).pw_name, found.st_mode & 0o777) == ("www-data", 0o640)
    assert found.st_mtime == 1_700_000_000
