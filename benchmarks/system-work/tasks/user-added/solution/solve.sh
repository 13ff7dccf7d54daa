#!/bin/sh
set -e
groupadd --gid 3100 deploy
useradd --uid 3100 --gid 3100 --groups www-data --shell /usr/sbin/nologin --home-dir /var/lib/deploy --create-home deploy
