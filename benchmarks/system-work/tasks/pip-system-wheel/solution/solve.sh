#!/bin/sh
set -e
pip install --no-index --find-links /opt/wheels --break-system-packages tally
