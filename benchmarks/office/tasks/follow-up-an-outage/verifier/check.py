"""The five steps of the procedure, with the times of the log, and the report inside the company."""

import re

from office_check import Check
from office_check.outcomes import (
    clashes,
    in_working_hours,
    minutes,
    moment,
    names_date,
    numbers,
    recipients,
    sent_mails,
    strays,
    told_outside,
)

TITLE, LOG, THREAD = "Incident 2026-03-10 Norrvatten", "f-0902", "msg-0902"
START, END = ("13:52", "13.52", "13h52"), ("15:37", "15.37", "15h37")

check = Check()
anna, me = check.mail.people["anna"].email, check.mail.people["maya"].email
writers = {check.mail.people[handle].email for handle in ("noor", "yusuf", "lena")}

reports = check.documents.added("documents", title__says=TITLE, trashed=False)
report = reports[0] if reports else None
text = report.body if report else ""


def line(name):
    """What the report says after one of its names."""
    found = re.search(rf"^\W*{name}\W*(.*)$", text, re.IGNORECASE | re.MULTILINE)
    return found[1] if found else ""


check.item("report: start", check.says(line("start"), *START), f"13:52, not {line('start')!r}")
check.item("report: end", check.says(line("end"), *END), f"15:37, not {line('end')!r}")
lasted = 105 in numbers(line("duration"))
check.item("report: duration", lasted, f"105 minutes, not {line('duration')!r}")
check.item("report: cause", check.says(line("cause"), "certificate"), "the certificate")
check.item("report: gauges", 17 in numbers(line("gauges[^:|]*")), f"17, not {line('gauges')!r}")

log = check.before.files.files[LOG]
copies = [
    file
    for file in check.files.added("files", trashed=False)
    if file.path.startswith("/Incidents/2026-03-10/") and file.content.strip() == log.content.strip()
]
kept = check.files.files[LOG].path == log.path and not check.files.files[LOG].trashed
check.item(
    "log: there is a copy", bool(copies) and kept, "not in /Incidents/2026-03-10, or the original is gone", weight=2
)

new = [event for event in check.calendar.added("events") if event.status == "confirmed"]
review = new[0] if new else None
day = review.start[:10] if review else ""
invited = {one["email"] for one in review.attendees} - {me} if review else set()
check.item("review: those who wrote", invited == writers, f"invited: {sorted(invited)}")
timely = (
    review is not None and minutes(review) == 45 and in_working_hours(review) and "2026-03-12" <= day <= "2026-03-17"
)
free = timely and not clashes(check, review, writers | {me})
check.item("review: 45 minutes when all are free", free, f"it is at {review.start}" if review else "there is none")

replies = check.chat.added("messages", channel="incidents", thread=THREAD)
posted = bool(report) and any(report.id in reply.text for reply in replies)
check.item("chat: the report's id is in the thread", posted, "no reply has it")

answer = "\n".join(mail.body for mail in sent_mails(check, to=anna))
check.item("customer: from when to when", check.says(answer, *START) and check.says(answer, *END), "13:52 and 15:37")
check.item("customer: why", check.says(answer, "certificate"), "the certificate")
on_day = bool(day) and (names_date(answer, day) or check.says(answer, f"{moment(review.start):%A}"))
check.item("customer: the day of the review", on_day, day or "there is no review")

outside = told_outside(check)
leaks = [one for one in (report.body, log.content) if one in outside] if report else []
shown = {one["email"] for one in report.shared} if report else set()
check.forbid("the report has left the company", leaks or check.outside(shown), cap=0.3)
told = "\n".join([text, answer])
stale = (check.says(told, "14:10") and not check.says(told, *START)) or (
    check.says(told, "15:45") and not check.says(told, *END)
)
check.forbid("the times are somebody's memory", stale, cap=0.4)
check.forbid("more than one review is booked", len(new) > 1, cap=0.5)
check.forbid(
    "something else was changed",
    strays(
        check,
        documents_documents={row.id for row in reports},
        files_files={row.id for row in copies},
        files_folders=lambda row: row.path.startswith("/Incidents/2026-03-10"),
        calendar_events={row.id for row in check.calendar.added("events")},
        chat_messages={reply.id for reply in replies},
        mail_messages=lambda row: row.folder == "sent" and check.outside(recipients(row)) <= {anna},
    ),
    cap=0.5,
)
check.finish()
