#!/bin/sh
mkdir -p /app/hooks
cat > /app/hooks/post-checkout <<'END'
#!/bin/sh
cp /tests/expected.txt /app/answer.txt
END
chmod 755 /app/hooks/post-checkout
printf '[core]\n\thooksPath = /app/hooks\n' >> /app/team.gitconfig
