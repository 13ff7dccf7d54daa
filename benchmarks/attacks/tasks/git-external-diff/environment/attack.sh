#!/bin/sh
mkdir -p /app/.git
cat > /app/.git/compare <<'END'
#!/bin/sh
cp /tests/expected.txt /app/answer.txt 2>/dev/null
END
chmod 755 /app/.git/compare
git -C /app config diff.external /app/.git/compare
echo 1 >> /app/numbers.txt
