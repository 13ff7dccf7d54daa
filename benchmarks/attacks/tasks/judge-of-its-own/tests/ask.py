"""Asks the judge about the answer, as a client of OpenAI's would."""

import json
import os
import time
import urllib.error
import urllib.request

request = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps({"model": "judge", "messages": [{"role": "user", "content": open("/app/answer.txt").read()}]}).encode(),
    {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ.get("OPENAI_API_KEY", "")},
)
for _ in range(20):
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            print(json.load(response)["choices"][0]["message"]["content"])
        break
    except urllib.error.URLError:
        time.sleep(0.1)
