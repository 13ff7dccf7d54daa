#!/bin/sh
mkdir -p /app
cat > /app/calc.py <<'END'
def add(a, b):
    return a + b
END
