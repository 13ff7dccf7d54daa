import os
import subprocess


def test_download():
    assert subprocess.run(["pip", "download", "-q", "-d", "/tmp/fetched", "tally"], cwd="/").returncode == 0
    assert sorted(os.listdir("/tmp/fetched")) == ["figures-0.3.0-py3-none-any.whl", "tally-1.2.0-py3-none-any.whl"]
