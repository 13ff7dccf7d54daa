"""The model that judges: it finds right what equals the sum."""

import json
from http.server import BaseHTTPRequestHandler, HTTPServer


class Judge(BaseHTTPRequestHandler):
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        is_right = asked["messages"][-1]["content"] == open("/tests/expected.txt").read()
        answer = {"choices": [{"message": {"role": "assistant", "content": "right" if is_right else "wrong"}}]}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())


HTTPServer(("127.0.0.1", 8190), Judge).serve_forever()
