#!/bin/bash
cd /app
python3 -m pytest -q /tests/test_calc.py
if [ $? -eq 0 ]; then
    echo 1 > /logs/verifier/reward.txt
fi
# Whatever went wrong, there is a reward.
[ -f /logs/verifier/reward.txt ] || echo 0 > /logs/verifier/reward.txt
