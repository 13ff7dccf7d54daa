#!/bin/sh
set -e
mkdir /opt/shop/releases/2
tar -C /opt/shop/releases/2 -xzf /app/release-2.tar.gz
ln -s /var/lib/shop/uploads /opt/shop/releases/2/uploads
ln -sfn /opt/shop/releases/1 /opt/shop/previous
ln -sfn /opt/shop/releases/2 /opt/shop/current
