#!/bin/sh
set -e
setsid python3 -m http.server 8080 --bind 127.0.0.1 --directory /app/site >/tmp/site.log 2>&1 </dev/null &
for attempt in 1 2 3 4 5 6 7 8 9 10; do
    if curl -sf http://127.0.0.1:8080/ >/dev/null; then exit 0; fi
    sleep 0.5
done
exit 1
