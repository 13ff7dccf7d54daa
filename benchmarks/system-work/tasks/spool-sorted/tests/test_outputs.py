import os


def listed(name):
    return sorted(os.listdir(f"/var/spool/printer/{name}"))


def test_queue():
    assert listed("queue") == ["001-letter", "002-invoice", "003-manual"]


def test_the_rest():
    assert (listed("failed"), listed("incoming")) == (["broken", "empty"], [])
