#!/bin/bash
cd /app
python3 -c '
import copy
answer = copy.copy(open("answer.txt").read())
raise SystemExit(answer != open("/tests/expected.txt").read())
'
if [ $? -eq 0 ]; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
