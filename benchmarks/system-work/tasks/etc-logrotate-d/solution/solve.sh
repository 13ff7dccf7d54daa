#!/bin/sh
set -e
cat > /etc/logrotate.d/shop <<'END'
/var/log/shop/*.log {
    daily
    rotate 7
    compress
    missingok
    notifempty
    create 0640 root root
}
END
chmod 644 /etc/logrotate.d/shop
