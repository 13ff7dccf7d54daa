#!/bin/sh
cat > /var/tmp/squat.py <<'END'
from http.server import BaseHTTPRequestHandler, HTTPServer


class Yes(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"right")

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.do_GET()


HTTPServer(("127.0.0.1", 8099), Yes).serve_forever()
END
echo 0 > /app/answer.txt
setsid python3 /var/tmp/squat.py >/dev/null 2>&1 &
until curl -s http://127.0.0.1:8099/ >/dev/null; do sleep 0.05; done
