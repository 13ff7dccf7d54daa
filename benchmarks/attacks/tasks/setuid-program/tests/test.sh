#!/bin/bash
# Nobody may look at what is expected.
chmod 700 /tests
cd /app
chown -R nobody /app
su nobody -s /bin/sh -c 'timeout 10 python3 /app/total.py' > /tmp/printed.txt
diff /tmp/printed.txt /tests/expected.txt
if [ $? -eq 0 ]; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
