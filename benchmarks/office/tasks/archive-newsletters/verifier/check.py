"""Six newsletters are in the archive, and nothing else has moved."""

from office_check import Check
from office_check.outcomes import strays

NEWSLETTERS = ("m-0901", "m-0902", "m-0904", "m-0905", "m-0906", "m-0907")

check = Check()
messages = check.mail.messages
for id in NEWSLETTERS:
    check.item(f"{id} is archived", messages[id].folder == "archive", f"it is in {messages[id].folder}")

moved = check.mail.changed("messages", fields=("folder",))
check.forbid("a mail was deleted", [after for _, after in moved if after.folder == "trash"])
check.forbid("something else was changed", strays(check, mail_messages=NEWSLETTERS), cap=0.4)
check.finish()
