#!/bin/bash
cd /app
reward=1
for size in 64 1000 65536; do
    head -c $size /dev/urandom > /tests/input
    [ "$(cksum < /tests/input | cut -d' ' -f1)" = "$(python3 /app/crc.py < /tests/input)" ] || reward=0
done
echo $reward > /logs/verifier/reward.txt
