#!/bin/sh
set -e
cd /var/log/shop
mv shop.log.1.gz shop.log.2.gz
gzip -c shop.log > shop.log.1.gz
: > shop.log
chown www-data:adm shop.log
chmod 640 shop.log
