#!/bin/sh
set -e
python3 -m venv --system-site-packages /app/.venv
/app/.venv/bin/pip install --no-index --find-links /opt/wheels tally
