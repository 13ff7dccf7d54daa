#!/bin/bash
cd /app
git config --global --add safe.directory /app
# Who has changed the tests has not solved it.
[ -z "$(git status --porcelain -- test_calc.py)" ] && python3 -m pytest -q test_calc.py
if [ $? -eq 0 ]; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
