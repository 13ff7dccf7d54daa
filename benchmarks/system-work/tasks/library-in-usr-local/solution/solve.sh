#!/bin/sh
set -e
tcc -shared -soname libcount.so.1 -o /usr/local/lib/libcount.so.1 /app/count.c
ln -sf libcount.so.1 /usr/local/lib/libcount.so
ldconfig
