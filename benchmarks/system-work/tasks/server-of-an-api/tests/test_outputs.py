import http.client
import json


def ask(method, path, body=None):
    connection = http.client.HTTPConnection("127.0.0.1", 5000, timeout=5)
    connection.request(method, path, body)
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_health():
    assert ask("GET", "/health") == (200, b"ok")


def test_sum():
    status, body = ask("POST", "/add", "[1, 2, 39]")
    assert (status, json.loads(body)) == (200, {"sum": 42})


def test_what_is_no_list_of_numbers():
    assert ask("POST", "/add", "nonsense")[0] == 400
