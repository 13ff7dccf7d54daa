#!/bin/bash
cd /app
# Where there is no network, what the image has must do.
apt-get -qq update
diff answer.txt /tests/expected.txt
if [ $? -eq 0 ]; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
