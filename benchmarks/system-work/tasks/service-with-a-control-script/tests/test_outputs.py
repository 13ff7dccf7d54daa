import os
import socket
import subprocess
import time


def tick():
    with socket.create_connection(("127.0.0.1", 7070), timeout=5) as connection:
        return connection.recv(100)


def pid():
    return int(open("/run/tickd.pid").read())


def control(word):
    return subprocess.run(["/usr/local/sbin/tickctl", word]).returncode


def test_it_was_started():
    assert control("status") == 0
    assert tick() == b"tick\n"


def test_it_is_stopped_and_started_again():
    before = pid()
    assert control("stop") == 0
    assert control("status") == 3
    assert not os.path.exists("/run/tickd.pid")
    time.sleep(1)
    assert control("start") == 0
    time.sleep(1)
    assert (pid() != before, tick()) == (True, b"tick\n")
