#!/bin/sh
set -e
sed -i -e 's/^language=.*/language=de/' -e 's/^capitals=.*/capitals=yes/' \
    -e 's,^#\? *log=.*,log=/var/log/greeter.log,' /etc/greeter/greeter.conf
