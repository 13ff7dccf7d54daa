#!/bin/bash
cd /app
for number in 1 10 321; do
    python3 double.py $number
done > /tmp/actual.txt 2>&1
for number in 1 10 321; do
    echo $((2 * number))
done > /tmp/expected.txt
if diff -q /tmp/actual.txt /tmp/expected.txt; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
