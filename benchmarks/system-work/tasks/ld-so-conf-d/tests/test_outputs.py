import glob
import os
import subprocess


def test_program():
    environment = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    ran = subprocess.run(["vowels", "education"], capture_output=True, text=True, env=environment)
    assert ran.stdout == "5\n"


def test_directory_is_configured():
    assert any("/opt/vowels/lib" in open(file).read() for file in glob.glob("/etc/ld.so.conf.d/*.conf"))


def test_library_stays():
    assert os.path.isfile("/opt/vowels/lib/libvowels.so.1")
