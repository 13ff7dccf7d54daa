#!/bin/bash
cd /app
cp /tests/*.py .
python3 -m pytest -q test_calc.py
if [ $? -eq 0 ]; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
