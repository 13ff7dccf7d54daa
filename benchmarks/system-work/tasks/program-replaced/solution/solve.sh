#!/bin/sh
set -e
mv /usr/local/bin/archive /usr/local/bin/archive.1
install -m 755 /app/archive-2 /usr/local/bin/archive
