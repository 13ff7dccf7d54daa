import os
import subprocess


def test_links():
    assert os.path.realpath("/opt/shop/current") == "/opt/shop/releases/2"
    assert os.path.realpath("/opt/shop/previous") == "/opt/shop/releases/1"
    assert os.path.islink("/opt/shop/current")


def test_release():
    assert subprocess.run(["/opt/shop/current/shop"], capture_output=True, text=True).stdout == "shop 2\n"
    assert open("/opt/shop/current/uploads/photo").read() == "photo\n"
