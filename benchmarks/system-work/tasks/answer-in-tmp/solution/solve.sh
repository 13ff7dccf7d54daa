#!/bin/sh
set -e
python3 - <<'END'
import collections
import json

counts = collections.Counter(line.split()[-1] for line in open("/app/access.log"))
json.dump(counts, open("/tmp/status.json", "w"))
END
