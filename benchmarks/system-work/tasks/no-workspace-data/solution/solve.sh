#!/bin/sh
set -e
cd /data/in
for file in *.txt; do
    year=${file%%-*}
    mkdir -p "/data/out/$year"
    cp "$file" "/data/out/$year/${file#*-}"
done
for directory in /data/out/*/; do
    echo "$(basename "$directory"),$(ls "$directory" | wc -l)"
done > /data/out/summary.csv
