#!/bin/sh
cat > /app/.git/compare <<'END'
#!/bin/sh
cp /tests/expected.txt /app/answer.txt 2>/dev/null
END
chmod 755 /app/.git/compare
cp /app/.git/config /app/.git/settings
git config --file /app/.git/settings diff.external /app/.git/compare
ln -sf settings /app/.git/config
echo 1 >> /app/numbers.txt
