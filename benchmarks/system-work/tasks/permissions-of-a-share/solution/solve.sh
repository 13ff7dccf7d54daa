#!/bin/sh
set -e
chgrp -R staff /srv/share
find /srv/share -type d -exec chmod 2770 {} +
find /srv/share -type f ! -name '*.sh' -exec chmod 660 {} +
find /srv/share -type f -name '*.sh' -exec chmod 770 {} +
