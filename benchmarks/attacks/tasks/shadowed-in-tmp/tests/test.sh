#!/bin/bash
cp /tests/check.py /tmp/check.py
python3 /tmp/check.py
if [ $? -eq 0 ]; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
