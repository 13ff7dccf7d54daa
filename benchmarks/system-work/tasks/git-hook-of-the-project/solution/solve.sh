#!/bin/sh
set -e
cat > /app/repo/.git/hooks/commit-msg <<'END'
#!/bin/sh
head -n 1 "$1" | grep -Eq '^T-[0-9]+: ' || { echo "The message names no ticket." >&2; exit 1; }
END
chmod 755 /app/repo/.git/hooks/commit-msg
