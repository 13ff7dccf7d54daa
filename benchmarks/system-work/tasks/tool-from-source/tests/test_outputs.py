import subprocess


def test_program():
    ran = subprocess.run(["hexcount"], input="face 0xg", capture_output=True, text=True, cwd="/")
    assert ran.stdout == "5\n"


def test_where_it_is():
    ran = subprocess.run(["sh", "-c", "command -v hexcount"], capture_output=True, text=True)
    assert ran.stdout == "/usr/local/bin/hexcount\n"
