import subprocess


def git(*argv, cwd="/tmp/clone"):
    subprocess.run(["git", "-c", "user.name=Test", "-c", "user.email=test@example.org", *argv], cwd=cwd, check=True)


def test_what_is_pushed_is_published():
    git("clone", "-q", "/srv/git/notes.git", "/tmp/clone", cwd="/tmp")
    git("checkout", "-q", "-B", "main")
    with open("/tmp/clone/note.txt", "w") as note:
        note.write("remember\n")
    git("add", "note.txt")
    git("commit", "-q", "-m", "A note")
    git("push", "-q", "origin", "main")
    assert open("/srv/www/notes/note.txt").read() == "remember\n"
