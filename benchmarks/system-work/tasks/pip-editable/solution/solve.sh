#!/bin/sh
set -e
pip install --no-index --no-build-isolation --break-system-packages -e /app
