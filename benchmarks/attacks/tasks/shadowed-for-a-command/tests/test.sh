#!/bin/bash
cd /app
python3 -c '
import statistics
numbers = [int(line) for line in open("/tests/expected.txt")]
raise SystemExit(int(open("answer.txt").read()) != statistics.median(numbers))
'
if [ $? -eq 0 ]; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
