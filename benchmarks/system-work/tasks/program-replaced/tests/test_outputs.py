import os
import subprocess
import tarfile


def test_new_version():
    os.makedirs("/tmp/stock", exist_ok=True)
    open("/tmp/stock/a", "w").write("1")
    assert subprocess.run(["archive", "/tmp/stock"]).returncode == 0
    with tarfile.open("/var/backups/stock.tar.gz", "r:gz") as packed:
        assert any(name.endswith("stock/a") for name in packed.getnames())


def test_mode_and_old_version():
    assert os.stat("/usr/local/bin/archive").st_mode & 0o777 == 0o755
    assert "# version 1" in open("/usr/local/bin/archive.1").read()
    assert "# version 2" in open("/usr/local/bin/archive").read()
