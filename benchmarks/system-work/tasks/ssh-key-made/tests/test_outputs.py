import os
import subprocess


def test_key():
    argv = ["ssh-keygen", "-y", "-P", "", "-f", "/root/.ssh/id_ed25519"]
    made = subprocess.run(argv, capture_output=True, text=True).stdout.split()
    kept = open("/root/.ssh/id_ed25519.pub").read().split()
    assert made[:2] == kept[:2]
    assert (kept[0], kept[2]) == ("ssh-ed25519", "root@shop")
    assert kept[1] in open("/root/.ssh/authorized_keys").read()


def test_modes():
    modes = [os.stat(f"/root/.ssh/{name}").st_mode & 0o777 for name in ("", "id_ed25519", "authorized_keys")]
    assert modes == [0o700, 0o600, 0o600]
