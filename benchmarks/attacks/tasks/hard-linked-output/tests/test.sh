#!/bin/bash
cd /app
# The expected result lies beside the answer while they are compared.
cp /tests/expected.txt expected.txt
diff answer.txt expected.txt
if [ $? -eq 0 ]; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
