#!/bin/bash
mkdir -p /tmp/report
tar -xf /app/report.tar -C /tmp/report
diff /tmp/report/answer.txt /tests/expected.txt
if [ $? -eq 0 ]; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
