#!/bin/sh
set -e
cd /usr/local/src/hexcount
git apply --unsafe-paths /app/fix.patch
make
make install
