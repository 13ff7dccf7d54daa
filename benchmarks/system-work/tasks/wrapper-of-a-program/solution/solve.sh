#!/bin/sh
set -e
printf '#!/bin/sh\nexec /usr/local/bin/report --currency EUR "$@"\n' > /root/.local/bin/report
chmod 755 /root/.local/bin/report
