#!/bin/sh
set -e
rm /usr/local/bin/date
