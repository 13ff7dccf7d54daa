#!/bin/sh
set -e
cat > /etc/profile.d/shop.sh <<'END'
export SHOP_HOME=/srv/shop
PATH=$PATH:$SHOP_HOME/bin
END
chmod 644 /etc/profile.d/shop.sh
