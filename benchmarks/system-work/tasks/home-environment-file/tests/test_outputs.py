import os
import subprocess


def test_program():
    ran = subprocess.run(["shop-status"], capture_output=True, text=True, env={**os.environ, "HOME": "/root"})
    assert ran.stdout == "https://shop.example.org as k3t7\n"


def test_mode():
    assert os.stat("/root/.config/shop/env").st_mode & 0o777 == 0o600
