#!/bin/bash
cd /app
cp /tests/test.js test.js
node test.js
if [ $? -eq 0 ]; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
