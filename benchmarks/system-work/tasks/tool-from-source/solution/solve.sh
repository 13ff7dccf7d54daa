#!/bin/sh
set -e
make -C /app/src install
