#!/bin/sh
set -e
cat > /app/Makefile <<'END'
.PHONY: report clean

report: build/report.txt

build/report.txt: report.txt
	mkdir -p build
	tr a-z A-Z < $< > $@

clean:
	rm -rf build
END
