import http.client


def get(path):
    connection = http.client.HTTPConnection("127.0.0.1", 9100, timeout=5)
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_quotes():
    assert get("/ada%20lovelace") == (200, b"that brain of mine")
    assert get("/plato") == (200, b"know thyself")
    assert get("/nobody")[0] == 404
