#!/bin/sh
set -e
mkdir -p /srv/venvs
python3 -m venv /srv/venvs/tally
/srv/venvs/tally/bin/pip install --no-index --find-links /opt/wheels tally
ln -s /srv/venvs/tally/bin/tally /usr/local/bin/tally
