#!/bin/sh
set -e
usermod --uid 4001 --shell /bin/bash report
chown -R --from=2001 4001 /srv/reports /home/report
