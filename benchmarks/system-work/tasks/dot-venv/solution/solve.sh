#!/bin/sh
set -e
python3 -m venv /app/.venv
/app/.venv/bin/pip install --no-index --find-links /opt/wheels -r /app/requirements.txt
