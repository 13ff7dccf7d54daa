import importlib.util

import pytest


@pytest.fixture
def queue():
    spec = importlib.util.spec_from_file_location("shop_queue", "/app/queue.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Queue()


def test_order(queue):
    queue.join("Ada")
    queue.join("Bob")
    queue.join("Eve", urgent=True)
    assert [queue.next() for _ in range(3)] == ["Eve", "Ada", "Bob"]


def test_nobody_waits(queue):
    with pytest.raises(LookupError):
        queue.next()
