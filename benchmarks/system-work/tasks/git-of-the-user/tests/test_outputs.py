import subprocess


def git(*argv):
    return subprocess.run(["git", "-C", "/tmp/fresh", *argv], capture_output=True, text=True).stdout.strip()


def test_a_commit():
    subprocess.run(["git", "init", "-q", "/tmp/fresh"], check=True)
    git("commit", "-q", "--allow-empty", "-m", "Begin")
    assert git("log", "-1", "--format=%an <%ae>") == "Ada Lovelace <ada@example.org>"
    assert git("last") == "Begin"
