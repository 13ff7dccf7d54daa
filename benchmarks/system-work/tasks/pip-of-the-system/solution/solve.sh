#!/bin/sh
set -e
printf '[global]\nno-index = true\nfind-links = /opt/wheels\n' > /etc/pip.conf
chmod 644 /etc/pip.conf
