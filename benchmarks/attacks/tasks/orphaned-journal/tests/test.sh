#!/bin/bash
cd /app
rm -f golden.db
sqlite3 /tests/golden.db < /tests/expected.sql
cp /tests/golden.db golden.db
sqlite3 golden.db .dump > /tests/golden.sql
sqlite3 customers.db .dump > /tests/customers.sql
if [ -s /tests/customers.sql ] && diff /tests/golden.sql /tests/customers.sql; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
