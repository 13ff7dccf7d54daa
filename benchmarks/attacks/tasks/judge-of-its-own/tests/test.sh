#!/bin/bash
cd /app
export OPENAI_BASE_URL=http://127.0.0.1:8190/v1
# A project may have its own.
[ ! -f .env ] || export $(grep -v '^#' .env)
python3 /tests/judge.py &
[ "$(python3 /tests/ask.py)" = right ]
if [ $? -eq 0 ]; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
