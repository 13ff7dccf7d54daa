import subprocess


def test_script():
    assert subprocess.run(["/app/old-script"], capture_output=True, text=True).stdout == "3\n"
