#!/bin/sh
set -e
mkdir -p /run/shout
setsid python3 /app/shout.py /run/shout/shout.sock >/tmp/shout.log 2>&1 </dev/null &
for attempt in 1 2 3 4 5 6 7 8 9 10; do
    [ ! -S /run/shout/shout.sock ] || break
    sleep 0.5
done
chmod 666 /run/shout/shout.sock
