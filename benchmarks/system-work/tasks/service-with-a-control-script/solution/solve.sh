#!/bin/sh
set -e
cat > /usr/local/sbin/tickctl <<'END'
#!/bin/sh
file=/run/tickd.pid
runs() { [ -s "$file" ] && kill -0 "$(cat "$file")" 2>/dev/null; }
case $1 in
start)
    runs && exit 0
    setsid /usr/local/sbin/tickd >/dev/null 2>&1 </dev/null &
    echo $! > "$file"
    ;;
stop)
    runs || exit 0
    kill "$(cat "$file")"
    rm -f "$file"
    ;;
status) runs || exit 3 ;;
*) exit 2 ;;
esac
END
chmod 755 /usr/local/sbin/tickctl
/usr/local/sbin/tickctl start
for attempt in 1 2 3 4 5 6 7 8 9 10; do
    if python3 -c 'import socket; socket.create_connection(("127.0.0.1", 7070), 1)' 2>/dev/null; then exit 0; fi
    sleep 0.5
done
exit 1
