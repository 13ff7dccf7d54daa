#!/bin/sh
set -e
mkdir -p /var/log/access
awk '{ print > ("/var/log/access/" substr($1, 1, 10) ".log") }' /var/log/access.log
grep -c ' 500$' /var/log/access.log > /var/log/access/errors
