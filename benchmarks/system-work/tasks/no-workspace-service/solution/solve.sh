#!/bin/sh
set -e
sed -i -e 's/^from urllib.parse import .*/from urllib.parse import unquote, urlsplit/' \
    -e 's/urlsplit(self.path).path/unquote(urlsplit(self.path).path)/' /srv/quotes/quotes.py
printf '[server]\nport = 9100\n' > /etc/quotes.ini
setsid python3 /srv/quotes/quotes.py >/var/log/quotes.log 2>&1 </dev/null &
for attempt in 1 2 3 4 5 6 7 8 9 10; do
    if curl -s http://127.0.0.1:9100/ >/dev/null; then exit 0; fi
    sleep 0.5
done
exit 1
