import ctypes
import os
import subprocess


def test_it_is_loaded_by_name():
    assert ctypes.CDLL("libcount.so.1").count_vowels(b"education") == 5


def test_it_is_listed():
    assert "libcount.so.1" in subprocess.run(["ldconfig", "-p"], capture_output=True, text=True).stdout


def test_link():
    assert os.readlink("/usr/local/lib/libcount.so").endswith("libcount.so.1")
