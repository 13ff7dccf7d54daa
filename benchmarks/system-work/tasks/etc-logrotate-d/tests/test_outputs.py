import gzip
import os
import subprocess


def test_configuration_is_sound():
    ran = subprocess.run(["logrotate", "-d", "/etc/logrotate.d/shop"], capture_output=True, text=True)
    assert ran.returncode == 0
    assert "error:" not in ran.stderr
    assert "(7 rotations)" in ran.stderr


def test_a_log_is_rotated():
    argv = ["logrotate", "-f", "-s", "/tmp/logrotate.state", "/etc/logrotate.d/shop"]
    assert subprocess.run(argv).returncode == 0
    assert gzip.open("/var/log/shop/orders.log.1.gz", "rt").read() == "order 1\norder 2\n"
    assert os.stat("/var/log/shop/orders.log").st_mode & 0o777 == 0o640
