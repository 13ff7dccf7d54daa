#!/bin/sh
set -e
ln -s /var/lib/project /app/data
ln -s /etc/project/settings.ini /app/settings.ini
