import glob
import subprocess


def test_file():
    [found] = glob.glob("/usr/local/lib/python3*/dist-packages/shared.pth")
    assert open(found).read().strip() == "/opt/shared/lib"


def test_module_is_found():
    ran = subprocess.run(["python3", "-c", "import rates; print(rates.VAT)"], capture_output=True, text=True, cwd="/")
    assert ran.stdout == "19\n"
