#!/bin/sh
set -e
cat > /app/service.py <<'END'
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Service(BaseHTTPRequestHandler):
    def reply(self, status, body):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.reply(200, b"ok") if self.path == "/health" else self.reply(404, b"")

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        try:
            answer = {"sum": sum(json.loads(body))}
        except (TypeError, ValueError):
            return self.reply(400, b"")
        self.reply(200, json.dumps(answer).encode())


ThreadingHTTPServer(("127.0.0.1", 5000), Service).serve_forever()
END
nohup python3 /app/service.py >/tmp/service.log 2>&1 </dev/null &
for attempt in 1 2 3 4 5 6 7 8 9 10; do
    if curl -sf http://127.0.0.1:5000/health >/dev/null; then exit 0; fi
    sleep 0.5
done
exit 1
