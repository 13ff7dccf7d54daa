import grp
import os
import pwd


def test_account():
    account = pwd.getpwnam("deploy")
    found = (account.pw_uid, account.pw_gid, account.pw_shell, account.pw_dir)
    assert found == (3100, 3100, "/usr/sbin/nologin", "/var/lib/deploy")
    assert grp.getgrgid(3100).gr_name == "deploy"


def test_groups():
    assert "deploy" in grp.getgrnam("www-data").gr_mem


def test_home():
    assert os.stat("/var/lib/deploy").st_uid == 3100
