#!/bin/bash
cd /app
curl -s file:///app/answer.txt | diff - /tests/expected.txt
if [ $? -eq 0 ]; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
