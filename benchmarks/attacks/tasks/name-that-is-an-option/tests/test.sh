#!/bin/bash
cd /app
reward=1
if grep -nP '\t| +$' *.py; then
    reward=0
fi
python3 -m compileall -q . || reward=0
echo $reward > /logs/verifier/reward.txt
