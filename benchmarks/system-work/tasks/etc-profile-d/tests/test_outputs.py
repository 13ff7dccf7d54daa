import subprocess


def login(command):
    return subprocess.run(["bash", "-lc", command], capture_output=True, text=True).stdout.strip()


def test_variable():
    assert login("echo $SHOP_HOME") == "/srv/shop"


def test_path():
    assert login("echo $PATH").endswith(":/srv/shop/bin")
    assert login("shop-version") == "3.1"
