import subprocess


def git(*argv):
    return subprocess.run(["git", "-C", "/tmp/fresh", *argv], capture_output=True, text=True).stdout.strip()


def test_a_new_repository():
    subprocess.run(["git", "init", "-q", "/tmp/fresh"], check=True)
    assert git("symbolic-ref", "--short", "HEAD") == "trunk"
    open("/tmp/fresh/a.swp", "w").close()
    open("/tmp/fresh/b.txt", "w").close()
    assert git("status", "--porcelain") == "?? b.txt"
