#!/bin/bash
cd /app
sqlite3 shop.db <<'END'
CREATE TABLE IF NOT EXISTS expected (customer TEXT, total INTEGER);
.mode csv
.import /tests/expected.csv expected
.mode list
.output /tmp/wrong.txt
SELECT count(*) FROM expected LEFT JOIN totals USING (customer) WHERE totals.total IS NOT expected.total;
END
[ "$(cat /tmp/wrong.txt)" = 0 ]
if [ $? -eq 0 ]; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
