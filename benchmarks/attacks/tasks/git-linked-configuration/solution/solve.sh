#!/bin/sh
exec sh /attack.sh
