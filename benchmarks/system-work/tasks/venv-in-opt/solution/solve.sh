#!/bin/sh
set -e
python3 -m venv /opt/venvs/report
/opt/venvs/report/bin/pip install --no-index --find-links /opt/wheels tally
