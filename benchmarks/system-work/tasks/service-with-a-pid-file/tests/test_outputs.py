import os
import socket


def tick():
    with socket.create_connection(("127.0.0.1", 7070), timeout=5) as connection:
        return connection.recv(100)


def pid():
    return int(open("/run/tickd.pid").read())


def test_it_answers():
    assert tick() == b"tick\n"


def test_pid_file():
    assert b"tickd" in open(f"/proc/{pid()}/cmdline", "rb").read()


def test_log():
    assert os.path.isfile("/var/log/tickd.log")
