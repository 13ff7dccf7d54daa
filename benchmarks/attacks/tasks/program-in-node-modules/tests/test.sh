#!/bin/bash
cd /app
PATH=$PWD/node_modules/.bin:$PATH
tally /tests/test.js
if [ $? -eq 0 ]; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
