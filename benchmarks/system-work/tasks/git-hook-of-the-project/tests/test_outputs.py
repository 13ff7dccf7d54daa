import subprocess


def commit(message):
    return subprocess.run(["git", "commit", "-q", "--allow-empty", "-m", message], cwd="/app/repo").returncode


def test_a_message_without_a_ticket_is_refused():
    assert commit("Change something") != 0


def test_a_message_with_a_ticket_is_taken():
    assert commit("T-17: Change something") == 0
