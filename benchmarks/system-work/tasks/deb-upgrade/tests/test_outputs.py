import os
import subprocess


def run(*argv):
    return subprocess.run(argv, capture_output=True, text=True).stdout


def test_packages():
    for package in ("weather", "weather-data"):
        assert run("dpkg-query", "-W", "-f=${Status} ${Version}", package) == "install ok installed 2.0"


def test_program():
    assert run("weather", "oslo") == "-4\n"


def test_configuration_is_kept():
    assert open("/etc/weather.conf").read() == "CITY=oslo\n"
    assert run("weather") == "-4\n"


def test_nothing_is_left_beside_it():
    assert not os.path.exists("/etc/weather.conf.dpkg-new")
