#!/bin/sh
set -e
mkdir -p /root/.local/bin
printf '#!/bin/sh\n/app/clock | cut -dT -f1\n' > /root/.local/bin/today
chmod 755 /root/.local/bin/today
