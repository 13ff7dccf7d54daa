#!/bin/sh
set -e
printf '[pytest]\ntestpaths = checks\npython_files = check_*.py\npythonpath = src\n' > /app/pytest.ini
