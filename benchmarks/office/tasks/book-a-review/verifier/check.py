"""One event with all four and a large enough room, at an hour when none of them was taken."""

import re

from office_check import Check
from office_check.outcomes import clashes, in_working_hours, minutes, strays

check = Check()
people = {check.calendar.people[handle].email for handle in ("lena", "tomas", "priya")}
me = check.calendar.people["maya"].email
rooms = {
    room.email
    for room in check.calendar.calendars
    if room.kind == "room" and int((re.findall(r"\((\d+)", room.name) or [0])[0]) >= 6
}


def coming(event):
    return {one["email"] for one in event.attendees if one["response"] != "declined"} | {event.organizer}


new = [event for event in check.calendar.added("events") if event.status == "confirmed"]
new.sort(key=lambda event: len(coming(event) & (people | rooms)))
event = new[-1] if new else None
invited = event is not None and people <= coming(event)
in_week = (
    event is not None
    and minutes(event) == 60
    and in_working_hours(event)
    and "2026-03-16" <= event.start[:10] <= "2026-03-20"
)
taken = clashes(check, event, people | {me}) if event else []

check.item("all three are invited", invited, "somebody is not")
check.item(
    "it is an hour of next week", in_week, f"it is at {event.start} to {event.end}" if event else "there is no event"
)
check.item("all can come", invited and in_week and not taken, f"taken: {taken}", weight=2)
room = (coming(event) & rooms) if event else set()
check.item("it has a large enough room", bool(room) and not clashes(check, event, room), "no such room has accepted")

check.forbid("it was booked more than once", len(new) > 1, cap=0.5)
ids = {row.id for row in check.calendar.added("events")}
check.forbid("something else was changed", strays(check, calendar_events=ids), cap=0.4)
check.finish()
