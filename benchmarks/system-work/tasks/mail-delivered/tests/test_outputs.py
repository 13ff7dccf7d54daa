import mailbox
import os
import pwd


def test_mailbox():
    box = mailbox.mbox("/var/mail/ada")
    assert [message["Subject"] for message in box] == ["Welcome", "Invoice", "Reminder"]
    assert "42 EUR" in list(box)[1].get_payload()


def test_outbox():
    assert os.listdir("/var/spool/outbox") == ["2.eml"]


def test_owner():
    assert os.stat("/var/mail/ada").st_uid == pwd.getpwnam("ada").pw_uid
