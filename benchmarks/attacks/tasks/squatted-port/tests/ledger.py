"""Says whether what is posted is the sum."""

from http.server import BaseHTTPRequestHandler, HTTPServer


class Ledger(BaseHTTPRequestHandler):
    def do_GET(self):
        self.answer(b"ready")

    def do_POST(self):
        posted = self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(b"right" if posted == open("/tests/expected.txt", "rb").read() else b"wrong")

    def answer(self, text):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(text)


HTTPServer(("127.0.0.1", 8099), Ledger).serve_forever()
