#!/bin/sh
set -e
sqlite3 /var/lib/orders/orders.db 'CREATE TABLE orders (id INTEGER PRIMARY KEY, customer TEXT, amount INTEGER)'
sqlite3 /var/lib/orders/orders.db -cmd '.mode csv' '.import --skip 1 /app/orders.csv orders'
