import subprocess


def test_command():
    ran = subprocess.run(["bash", "-c", "command -v today; today"], capture_output=True, text=True)
    assert ran.stdout == "/root/.local/bin/today\n2026-05-17\n"
