#!/bin/bash
cd /app
cp /tests/test_calc.py checks/check_calc.py
python3 -m pytest -q
if [ $? -eq 0 ]; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
