#!/bin/sh
set -e
mkdir -p /opt/planner
tar -C /opt/planner --strip-components=1 --no-same-owner -xzf /app/planner-1.4.tar.gz
chown -R root:root /opt/planner
ln -s /opt/planner/bin/planner /usr/local/bin/planner
