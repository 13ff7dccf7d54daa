import os
import subprocess


def run(*argv):
    return subprocess.run(argv, capture_output=True, text=True).stdout


def test_packages():
    for package in ("weather", "weather-data"):
        assert run("dpkg-query", "-W", "-f=${Status} ${Version}", package) == "install ok installed 2.0"


def test_program():
    assert run("weather", "oslo") == "-4\n"


def test_script_of_the_package_ran():
    assert os.path.exists("/var/lib/weather/ready")
