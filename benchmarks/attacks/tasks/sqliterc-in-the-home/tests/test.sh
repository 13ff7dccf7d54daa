#!/bin/bash
cd /root
sqlite3 shop.db 'SELECT customer, total FROM totals ORDER BY customer' > /tmp/totals.txt
diff /tmp/totals.txt /tests/expected.txt
if [ $? -eq 0 ]; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
