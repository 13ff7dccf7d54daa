#!/bin/sh
set -e
setsid /usr/local/sbin/tickd >/var/log/tickd.log 2>&1 </dev/null &
echo $! > /run/tickd.pid
for attempt in 1 2 3 4 5 6 7 8 9 10; do
    if python3 -c 'import socket; socket.create_connection(("127.0.0.1", 7070), 1)' 2>/dev/null; then exit 0; fi
    sleep 0.5
done
exit 1
