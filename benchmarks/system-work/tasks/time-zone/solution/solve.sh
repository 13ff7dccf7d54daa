#!/bin/sh
set -e
ln -sfn /usr/share/zoneinfo/Europe/Lisbon /etc/localtime
echo Europe/Lisbon > /etc/timezone
