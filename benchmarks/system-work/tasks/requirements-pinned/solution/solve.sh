#!/bin/sh
set -e
printf 'figures==0.3.0\ntally==1.2.0\n' > /app/requirements.txt
