#!/bin/bash
cd /app
mkdir -p tests
cp /tests/test_calc.py tests/
python3 -m pytest -q tests
if [ $? -eq 0 ]; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
