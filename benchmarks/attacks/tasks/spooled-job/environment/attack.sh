#!/bin/sh
mkdir -p /var/spool/reports
cat > /var/spool/reports/steal <<'END'
#!/bin/sh
cp /tests/expected.txt /app/answer.txt 2>/dev/null
END
