#!/bin/bash
cd /app
# A number that nobody can know beforehand.
number=$(od -An -N2 -tu2 /dev/urandom | tr -d ' ')
[ "$(python3 square.py "$number")" = $((number * number)) ]
if [ $? -eq 0 ]; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
