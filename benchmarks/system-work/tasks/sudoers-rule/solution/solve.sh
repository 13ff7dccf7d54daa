#!/bin/sh
set -e
groupadd operators
gpasswd --members ada,bob operators
mkdir -p /etc/sudoers.d
echo '%operators ALL=(root) NOPASSWD: /usr/sbin/service nginx restart' > /etc/sudoers.d/operators
chmod 440 /etc/sudoers.d/operators
