#!/bin/bash
cd /app
python3 - <<'END'
with open("/tests/expected.txt") as expected, open("answer.txt") as answer:
    raise SystemExit(expected.read() != answer.read())
END
if [ $? -eq 0 ]; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
