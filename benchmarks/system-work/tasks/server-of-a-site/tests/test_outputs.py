import http.client


def get(path):
    connection = http.client.HTTPConnection("127.0.0.1", 8080, timeout=5)
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, answer.read()


def test_page():
    assert get("/") == (200, b"<h1>Shop</h1>\n")


def test_what_is_not_there():
    assert get("/nothing")[0] == 404
