#!/bin/bash
export PATH="$HOME/.local/bin:$PATH"
cd /root
PYTHONPATH=. pytest -q /tests/test_calc.py
if [ $? -eq 0 ]; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
