#!/bin/sh
set -e
python3 -m venv /app/env
/app/env/bin/pip install --no-index --find-links /opt/wheels tally
printf '#!/bin/sh\nexec /app/env/bin/tally < /app/numbers.txt\n' > /app/run.sh
chmod 755 /app/run.sh
