import grp
import gzip
import os
import pwd


def text(name):
    return gzip.open(f"/var/log/shop/{name}", "rt").read()


def test_rotated_logs():
    assert (text("shop.log.1.gz"), text("shop.log.2.gz")) == ("today 1\ntoday 2\n", "yesterday\n")


def test_the_log_itself():
    found = os.stat("/var/log/shop/shop.log")
    assert (found.st_size, found.st_mode & 0o777) == (0, 0o640)
    assert (pwd.getpwuid(found.st_uid).pw_name, grp.getgrgid(found.st_gid).gr_name) == ("www-data", "adm")
