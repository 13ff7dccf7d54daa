import json


def test_counts():
    assert json.load(open("/tmp/status.json")) == {"200": 3, "500": 2}
