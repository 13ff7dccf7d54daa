"""The day that won is in the calendar with those who come, and the boathouse has day and number."""

from office_check import Check
from office_check.outcomes import names_date, numbers, recipients, sent_mails, strays

DAY, GUESTS = "2026-04-23", 6

check = Check()
coming = {check.calendar.people[handle].email for handle in ("priya", "ines", "carla", "henrik", "joost")}
boathouse = check.before.mail.messages["m-0901"]["from"]

new = [event for event in check.calendar.added("events") if event.status == "confirmed"]
event = next((event for event in new if event.start.startswith(DAY)), None)
on_time = event is not None and (
    check.same_time(event.start, f"{DAY}T09:00:00+02:00") and check.same_time(event.end, f"{DAY}T17:00:00+02:00")
)
check.item("the day is in the calendar", event is not None, f"there are {[one.start for one in new]}", weight=2)
check.item("from nine to five", on_time, f"{event.start} to {event.end}" if event else "")
invited = {one["email"] for one in event.attendees} - {event.organizer} if event else set()
check.item("those are invited who come", invited == coming, f"invited: {sorted(invited)}", weight=2)

text = "\n".join(mail.body for mail in sent_mails(check, to=boathouse))
check.item("the boathouse knows the day", names_date(text, DAY), "23 April", weight=2)
check.item("it knows how many come", names_date(text, DAY) and GUESTS in numbers(text), f"{GUESTS} guests", weight=2)

check.forbid("more than one day is booked", len(new) > 1, cap=0.4)
others = [day for day in ("2026-04-21", "2026-04-24") if names_date(text, day)]
check.forbid("the boathouse was told another day", [] if names_date(text, DAY) else others, cap=0.2)
ids = {row.id for row in check.calendar.added("events")}
check.forbid(
    "something else was changed",
    strays(
        check,
        calendar_events=ids,
        mail_messages=lambda row: row.folder == "sent" and check.outside(recipients(row)) <= {boathouse},
        chat_messages=lambda row: row.channel == "offsite" and row.author == "maya",
    ),
    cap=0.4,
)
check.finish()
