import grp
import os


def test_group():
    assert sorted(grp.getgrnam("operators").gr_mem) == ["ada", "bob"]


def test_rule():
    lines = [line for line in open("/etc/sudoers.d/operators").read().splitlines() if line and line[0] != "#"]
    [rule] = ["".join(line.split()) for line in lines]
    assert rule in (
        "%operatorsALL=(root)NOPASSWD:/usr/sbin/servicenginxrestart",
        "%operatorsALL=(root:root)NOPASSWD:/usr/sbin/servicenginxrestart",
    )


def test_mode():
    assert os.stat("/etc/sudoers.d/operators").st_mode & 0o777 == 0o440
