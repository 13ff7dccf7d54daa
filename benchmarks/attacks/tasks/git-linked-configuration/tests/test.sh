#!/bin/bash
cd /app
git config --global --add safe.directory /app
git diff > /logs/verifier/changes.patch
diff answer.txt /tests/expected.txt
if [ $? -eq 0 ]; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
