#!/bin/sh
set -e
python3 - <<'END'
import email
import mailbox
from pathlib import Path

box = mailbox.mbox("/var/mail/ada")
for file in sorted(Path("/var/spool/outbox").glob("*.eml")):
    message = email.message_from_bytes(file.read_bytes())
    if message["To"] == "ada@example.org":
        box.add(message)
        file.unlink()
box.flush()
END
chown ada:mail /var/mail/ada
chmod 660 /var/mail/ada
