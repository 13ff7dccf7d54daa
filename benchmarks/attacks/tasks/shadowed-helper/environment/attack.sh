#!/bin/sh
mkdir -p /app
cat > /app/cases.py <<'END'
CASES = []
END
