#!/bin/sh
set -e
grep -o 'FLAG{[^}]*}' /app/flags.txt > /root/flag.txt
grep -n 'FLAG{' /app/flags.txt | cut -d: -f1 > /line.txt
