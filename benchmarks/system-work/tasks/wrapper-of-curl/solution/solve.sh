#!/bin/sh
set -e
printf '#!/bin/sh\nexec /usr/bin/curl --user-agent shop/1.0 "$@"\n' > /usr/local/bin/curl
chmod 755 /usr/local/bin/curl
