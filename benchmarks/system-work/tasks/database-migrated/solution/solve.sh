#!/bin/sh
set -e
sqlite3 /var/lib/shop/shop.db <<'END'
BEGIN;
ALTER TABLE customers ADD COLUMN first TEXT;
ALTER TABLE customers ADD COLUMN last TEXT;
UPDATE customers SET first = substr(name, 1, instr(name, ' ') - 1), last = substr(name, instr(name, ' ') + 1);
ALTER TABLE customers DROP COLUMN name;
CREATE INDEX customers_last ON customers (last);
PRAGMA user_version = 2;
COMMIT;
END
