"""Every line of the checklist, and no more rights than it gives."""

import re

from office_check import Check
from office_check.outcomes import names_date, recipients, sent_mails, strays

WEEKLIES = ("e-0901", "e-0902", "e-0903")
CHANNELS = ("newcomers", "operations")
FOLDER = "/Operations"

check = Check()
nadia, lead = (check.mail.people[handle].email for handle in ("nadia", "noor"))

for id in WEEKLIES:
    event = check.calendar.events[id]
    before = {one["email"] for one in check.before.calendar.events[id].attendees}
    invited = {one["email"] for one in event.attendees}
    right = event.status == "confirmed" and invited == before | {nadia}
    check.item(f"she is invited on {event.start[:10]}", right, f"invited: {sorted(invited)}")

role = {"email": nadia, "role": "writer"}
check.item("she can write in the folder of the team", role in check.files.folders[FOLDER].shared, "she can't", weight=2)
for id in CHANNELS:
    check.item(f"she is in #{id}", "nadia" in check.chat.channels[id].members, "she is not")

mails = sent_mails(check, to=nadia)
text = "\n".join(mail.body for mail in mails)
check.item("she and her lead got a mail", any(lead in recipients(mail) for mail in mails), "no mail went to both")
on_day = names_date(text, "2026-03-16") or check.says(text, "Monday")
check.item(
    "it says when", on_day and check.says(text, "9:30", "9.30", "half past nine", "half past 9"), "16 March, 9:30"
)
check.item("it says where", check.says(text, "goods entrance"), "the goods entrance")
check.item("it says who her buddy is", bool(re.search(r"\bSam\b", text)), "Sam")

items = [row for row in (*check.files.folders, *check.files.files) if row.path != FOLDER]
also = [row.path for row in items if nadia in [one["email"] for one in row.shared]]
also += [after.id for before, after in check.chat.changed("channels", but=CHANNELS) if "nadia" in after.members]
also += [after.id for before, after in check.calendar.changed("events", but=WEEKLIES)]
check.forbid("she has more than the checklist gives", also, cap=0.4)
check.forbid(
    "something else was changed",
    strays(
        check,
        calendar_events=WEEKLIES,
        files_folders={FOLDER},
        chat_channels=CHANNELS,
        mail_messages=lambda row: (
            row.folder == "sent" and nadia in recipients(row) and not check.outside(recipients(row))
        ),
    ),
    cap=0.5,
)
check.finish()
