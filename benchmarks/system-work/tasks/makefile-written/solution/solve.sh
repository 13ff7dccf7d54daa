#!/bin/sh
set -e
cat > /app/Makefile <<'END'
.PHONY: check dist

check:
	python3 -m pytest -q tests

dist:
	mkdir -p dist
	tar -czf dist/calc.tar.gz calc.py
END
