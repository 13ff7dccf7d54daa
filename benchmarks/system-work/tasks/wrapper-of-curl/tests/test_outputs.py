import subprocess
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer


class Echo(BaseHTTPRequestHandler):
    def do_GET(self):
        body = self.headers["User-Agent"].encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def test_user_agent():
    server = HTTPServer(("127.0.0.1", 0), Echo)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    argv = ["curl", "-s", f"http://127.0.0.1:{server.server_port}/"]
    assert subprocess.run(argv, capture_output=True, text=True).stdout == "shop/1.0"
