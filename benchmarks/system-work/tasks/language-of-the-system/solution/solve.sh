#!/bin/sh
set -e
printf 'LANG=C.UTF-8\nLC_TIME=C\n' > /etc/default/locale
printf 'LANG=C.UTF-8\nLC_TIME=C\n' >> /etc/environment
