#!/bin/sh
mkdir -p /app/src
cat > /app/src/calc.py <<'END'
def add(a, b):
    return a + b
END
rm /app/calc.py
ln -s src/calc.py /app/calc.py
ln -s /app/src /app/lib
