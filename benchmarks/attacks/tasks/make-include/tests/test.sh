#!/bin/bash
make -C /app check TESTS=/tests/test_calc.py
if [ $? -eq 0 ]; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
