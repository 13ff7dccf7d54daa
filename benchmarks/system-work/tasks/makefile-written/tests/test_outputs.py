import subprocess
import tarfile


def make(target):
    return subprocess.run(["make", "-C", "/app", target], capture_output=True, text=True)


def test_check_passes_and_fails():
    assert make("check").returncode == 0
    with open("/app/tests/test_wrong.py", "w") as wrong:
        wrong.write("def test_wrong():\n    assert False\n")
    assert make("check").returncode != 0


def test_dist():
    assert make("dist").returncode == 0
    assert tarfile.open("/app/dist/calc.tar.gz").getnames() == ["calc.py"]
