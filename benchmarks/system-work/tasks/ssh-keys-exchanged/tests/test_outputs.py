import subprocess


def lines():
    return [line.strip() for line in open("/root/.ssh/authorized_keys") if line.strip() and line[0] != "#"]


def test_keys():
    ran = subprocess.run(["ssh-keygen", "-l", "-f", "/root/.ssh/authorized_keys"], capture_output=True, text=True)
    assert sorted(line.split()[2] for line in ran.stdout.splitlines()) == ["ada@shop", "backup@shop"]


def test_limits():
    [backup] = [line for line in lines() if line.endswith("backup@shop")]
    options = backup.split(" ssh-ed25519 ")[0]
    assert sorted(options.split(",")) == ['command="/usr/local/bin/backup"', "restrict"]
    [ada] = [line for line in lines() if line.endswith("ada@shop")]
    assert ada == open("/app/ada.pub").read().strip()
