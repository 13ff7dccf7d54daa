#!/bin/sh
set -e
cat > /usr/local/bin/wordfreq <<'END'
#!/bin/sh
tr -cs '[:alpha:]' '\n' | tr '[:upper:]' '[:lower:]' | grep . | sort | uniq -c | sort -k1,1nr -k2 | head -n 3 |
    sed 's/^ *//'
END
chmod 755 /usr/local/bin/wordfreq
