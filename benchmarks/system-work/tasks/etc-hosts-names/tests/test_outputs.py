import socket


def test_names():
    assert socket.gethostbyname("db.internal") == "127.0.0.1"
    assert socket.gethostbyname("cache.internal") == "127.0.0.1"


def test_the_rest_is_kept():
    assert any("localhost" in line.split() for line in open("/etc/hosts"))
