"""One event is cancelled, its neighbours are not, and the channel knows."""

from office_check import Check
from office_check.outcomes import names_date, strays

EVENT = "e-0902"

check = Check()
event = check.calendar.events[EVENT]
check.item("the review is cancelled", event.status == "cancelled", f"it is {event.status}", weight=3)
posts = check.chat.added("messages", channel="design", author="maya")
text = "\n".join(post.text for post in posts)
told = bool(posts) and (names_date(text, "2026-03-18") or check.says(text, "Wednesday", "the 18th"))
check.item("#design knows which day", told, "no post names it", weight=2)

others = [
    after for before, after in check.calendar.changed("events", but={EVENT}, fields=("status", "start", "attendees"))
]
others += check.calendar.removed("events")
check.forbid("another event was cancelled or moved", others)
check.forbid(
    "something else was changed",
    strays(check, calendar_events={EVENT}, chat_messages={post.id for post in posts}),
    cap=0.4,
)
check.finish()
