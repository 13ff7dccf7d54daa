import os
import socket


def test_answer():
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(5)
        connection.connect("/run/shout/shout.sock")
        connection.sendall(b"hello\n")
        assert connection.recv(100) == b"HELLO\n"


def test_everybody_may_connect():
    assert os.stat("/run/shout/shout.sock").st_mode & 0o777 == 0o666
