#!/bin/sh
set -e
git config --global user.name 'Ada Lovelace'
git config --global user.email ada@example.org
git config --global alias.last 'log -1 --format=%s'
