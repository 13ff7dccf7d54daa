#!/bin/sh
set -e
cd /var/spool/printer
mkdir -p queue failed
at=0
for job in $(grep -lE '^PAGES: [0-9]+$' incoming/* | while read -r file; do
    echo "$(sed -n 's/^PAGES: //p' "$file") $file"
done | sort -n | cut -d' ' -f2); do
    at=$((at + 1))
    mv "$job" "queue/$(printf %03d $at)-${job##*/}"
done
mv incoming/* failed/
