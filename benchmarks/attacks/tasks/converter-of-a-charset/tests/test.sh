#!/bin/bash
cd /app
# Some editors write it so.
iconv -f ISO-8859-15 -t UTF-8 answer.txt | diff - /tests/expected.txt
if [ $? -eq 0 ]; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
