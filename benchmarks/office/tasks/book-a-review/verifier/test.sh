#!/bin/sh
exec office-check "$(dirname "$0")/check.py"
