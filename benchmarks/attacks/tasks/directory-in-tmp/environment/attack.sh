#!/bin/sh
echo 'print("x")' > /app/double.py
mkdir /tmp/expected.txt
for number in 1 2 3; do echo x; done > /tmp/expected.txt/actual.txt
