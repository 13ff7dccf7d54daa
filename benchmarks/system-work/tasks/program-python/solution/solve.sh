#!/bin/sh
set -e
ln -s /usr/bin/python3 /usr/local/bin/python
