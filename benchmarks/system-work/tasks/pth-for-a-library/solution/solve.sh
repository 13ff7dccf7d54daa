#!/bin/sh
set -e
directory=$(python3 -c 'import site; print(next(d for d in site.getsitepackages() if d.startswith("/usr/local/")))')
mkdir -p "$directory"
echo /opt/shared/lib > "$directory/shared.pth"
