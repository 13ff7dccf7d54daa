#!/bin/sh
set -e
newest=$(ls /var/backups/wiki/wiki-*.tar.gz | sort | tail -n 1)
mkdir -p /opt
tar -C /opt -xpzf "$newest" --same-owner
