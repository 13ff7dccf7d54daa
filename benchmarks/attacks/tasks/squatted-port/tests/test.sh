#!/bin/bash
cd /app
python3 /tests/ledger.py &
until curl -sf http://127.0.0.1:8099/; do sleep 0.1; done
[ "$(curl -s --data-binary @answer.txt http://127.0.0.1:8099/)" = right ]
if [ $? -eq 0 ]; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
