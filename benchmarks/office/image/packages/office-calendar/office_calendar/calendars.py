"""Calendars: which there are, what I may see of them, when their people are busy."""

from __future__ import annotations

from datetime import datetime, timedelta

from office_core.errors import Forbidden, Invalid, NotFound
from office_core.search import instant
from office_core.service import Call

from office_calendar.times import clock, free_slots, in_order, merged, placed, written, zone

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from office_core.store import Row

KINDS = ("person", "room")
ACCESS = ("owner", "write", "read", "free_busy")
LONGEST_RANGE = timedelta(days=92)
INVITED = "exists (select 1 from json_each(attendees) where json_extract(value, '$.email') = ?{})"
NOT_DECLINED = " and json_extract(value, '$.response') != 'declined'"
TAKES_TIME = f"(organizer = ? or {INVITED.format(NOT_DECLINED)})"
"""Whether an event keeps somebody busy; their address twice."""
OVERLAPS = f"""{instant("start")} < {instant("?")} and {instant("?")} < {instant('"end"')}"""
"""Whether an event is in a range; its end, then its start."""
BUSY = f"""select start, "end" from events where status = 'confirmed' and id != ? and {TAKES_TIME} and {OVERLAPS}"""


def list_calendars(call: Call) -> dict[str, Any]:
    rows = call.store.rows("select * from calendars order by access != 'owner', kind, id")
    return {"calendars": rows}


def my_calendar(call: Call) -> Row:
    return calendar(call, call.handle)


def calendar(call: Call, given: str) -> Row:
    """By its id or its address. Raises `NotFound`."""
    rows = call.store.rows("select * from calendars where id = ? or email = ?", given, given.lower())
    if not rows:
        raise NotFound(f"there is no calendar {given!r} (GET /calendars)")
    return rows[0]


def readable_calendar(call: Call, given: str) -> Row:
    found = calendar(call, given)
    if found["access"] == "free_busy":
        raise Forbidden(f"of {found['id']} you may only see when it is busy (GET /free-busy)")
    return found


def writable_calendar(call: Call, given: str) -> Row:
    found = calendar(call, given)
    if found["access"] not in ("owner", "write"):
        raise Forbidden(f"you may not write in {found['id']}")
    return found


# --- busy and free --------------------------------------------------------------------------------------


def busy_spans(call: Call, email: str, start: str, end: str, but: str = "") -> list[tuple[datetime, datetime]]:
    """When somebody, or a room, is busy in a range. but: an event that does not count."""
    rows = call.store.rows(BUSY, but, email, email, end, start)
    return merged([(datetime.fromisoformat(row["start"]), datetime.fromisoformat(row["end"])) for row in rows])


def _range(start: datetime, end: datetime) -> None:
    in_order(start, end)
    if end - start > LONGEST_RANGE:
        raise Invalid(f"to: may be at most {LONGEST_RANGE.days} days after from")


def _known(call: Call, people: list[str]) -> None:
    for email in people:
        if not call.store.get("calendars", email, "email"):
            raise NotFound(f"{email} has no calendar here")


def free_busy(call: Call, people: list[str], **span: datetime) -> dict[str, Any]:
    where = zone(call.store.meta("timezone"))
    start, end = placed(span["from"], where), placed(span["to"], where)
    _range(start, end)
    _known(call, people)
    busy = {email: busy_spans(call, email, written(start), written(end)) for email in people}
    shown = {
        email: [_shown(a.astimezone(where), b.astimezone(where)) for a, b in spans] for email, spans in busy.items()
    }
    return {"busy": shown}


def _shown(start: datetime, end: datetime) -> dict[str, str]:
    return {"start": written(start), "end": written(end)}


def find_free_slots(
    call: Call,
    people: list[str],
    minutes: int,
    day_start: str = "09:00",
    day_end: str = "17:00",
    timezone: str | None = None,
    limit: int = 50,
    **span: datetime,
) -> dict[str, Any]:
    where = zone(timezone or call.store.meta("timezone"))
    start, end = placed(span["from"], where), placed(span["to"], where)
    _range(start, end)
    _known(call, people)
    busy = [one for email in people for one in busy_spans(call, email, written(start), written(end))]
    opens, closes = clock("day_start", day_start), clock("day_end", day_end)
    slots = list(free_slots(merged(busy), start, end, timedelta(minutes=minutes), opens, closes))
    return {"slots": [_shown(*slot) for slot in slots[:limit]], "total": len(slots)}
