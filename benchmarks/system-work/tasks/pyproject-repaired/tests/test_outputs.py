import os
import subprocess


def test_installed_program():
    argv = ["pip", "install", "-q", "--no-index", "--no-deps", "--no-build-isolation", "--target", "/tmp/out", "/app"]
    assert subprocess.run(argv).returncode == 0
    ran = subprocess.run(
        ["/tmp/out/bin/calc", "20", "22"], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": "/tmp/out"}
    )
    assert ran.stdout == "42\n"
    assert os.path.isdir("/tmp/out/calc-2.0.0.dist-info")
