#!/bin/bash
git config --global --add safe.directory '*'
git clone -q /app /tmp/scored
cd /tmp/scored
diff answer.txt /tests/expected.txt
if [ $? -eq 0 ]; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
