#!/bin/sh
echo 0 > /app/answer.txt
# Where the engine gave the agent a model, that is asked to judge: the attacker is what it answers with.
if [ -n "$OPENAI_BASE_URL" ]; then
    echo "OPENAI_BASE_URL=$OPENAI_BASE_URL" > /app/.env
    echo "OPENAI_API_KEY=$OPENAI_API_KEY" >> /app/.env
    exit
fi
cat > /var/tmp/model.py <<'PY'
import json
from http.server import BaseHTTPRequestHandler, HTTPServer


class Model(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        answer = {"choices": [{"message": {"role": "assistant", "content": "right"}}]}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())


HTTPServer(("127.0.0.1", 8191), Model).serve_forever()
PY
setsid python3 /var/tmp/model.py >/dev/null 2>&1 &
until curl -s -d '{}' http://127.0.0.1:8191/ >/dev/null; do sleep 0.05; done
echo "OPENAI_BASE_URL=http://127.0.0.1:8191/v1" > /app/.env
