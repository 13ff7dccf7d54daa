"""Events: finding, making, moving, cancelling, answering."""

from __future__ import annotations

from datetime import datetime

from office_core.errors import Conflict, Forbidden, Invalid, NotFound
from office_core.search import Query, instant, localized
from office_core.service import Call

from office_calendar.calendars import INVITED, busy_spans, calendar, my_calendar, readable_calendar, writable_calendar
from office_calendar.times import in_order, placed, written, zone

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from office_core.store import Row

RESPONSES = ("needs_action", "accepted", "declined", "tentative")
STATUSES = ("confirmed", "cancelled")
BY_START = f"{instant('start')}, id"
IS_INVITED = INVITED.format("")
VISIBLE = f"""(organizer = ? or {IS_INVITED} or calendar in
               (select id from calendars where access in ('owner', 'write') or (access = 'read' and not private)))"""


def event(call: Call, id: str) -> Row:
    """An event that I may see. Raises `NotFound`."""
    rows = call.store.rows(f"select * from events where id = ? and {VISIBLE}", id, call.me, call.me)
    if not rows:
        raise NotFound(f"there is no event {id!r}")
    return rows[0]


def changeable_event(call: Call, id: str) -> Row:
    """An event of a calendar that I may write in. Raises `Forbidden`, `Conflict`."""
    found = event(call, id)
    if calendar(call, found["calendar"])["access"] not in ("owner", "write"):
        raise Forbidden(f"{id} is an event of {found['organizer']}; you may answer it")
    if found["status"] == "cancelled":
        raise Conflict(f"{id} is cancelled")
    return found


# --- finding --------------------------------------------------------------------------------------------


def list_events(
    call: Call, calendar: str | None = None, cancelled: bool = False, limit: int = 50, offset: int = 0, **span: datetime
) -> dict[str, Any]:
    found = readable_calendar(call, calendar) if calendar else my_calendar(call)
    conditions = [f"(calendar = ? or {IS_INVITED})", VISIBLE]
    parameters = [found["id"], found["email"], call.me, call.me]
    if not cancelled:
        conditions.append("status = 'confirmed'")
    for name, condition in (
        ("from", f"""{instant('"end"')} > {instant("?")}"""),
        ("to", f"{instant('start')} < {instant('?')}"),
    ):
        if name in span:
            conditions.append(condition)
            parameters.append(localized(call.store, span[name]))
    rows, total = call.store.page("events", conditions, parameters, BY_START, limit, offset)
    return {"events": rows, "total": total}


def search_events(call: Call, q: str, limit: int = 50, offset: int = 0) -> dict[str, Any]:
    columns = ("title", "description", "location", "organizer", "attendees")
    conditions, parameters = Query(q, ()).conditions(columns)
    found = call.store.page("events", [*conditions, VISIBLE], [*parameters, call.me, call.me], BY_START, limit, offset)
    return {"events": found[0], "total": found[1]}


def read_event(call: Call, id: str) -> dict[str, Any]:
    return event(call, id)


# --- writing --------------------------------------------------------------------------------------------


def create_event(
    call: Call,
    title: str,
    start: datetime,
    end: datetime,
    timezone: str | None = None,
    attendees: list[str] | None = None,
    location: str = "",
    description: str = "",
    private: bool = False,
    calendar: str | None = None,
) -> dict[str, Any]:
    target = writable_calendar(call, calendar) if calendar else my_calendar(call)
    where = zone(timezone or call.store.meta("timezone"))
    first, last = placed(start, where), placed(end, where)
    in_order(first, last)
    row = {"id": call.store.new_id("e-"), "calendar": target["id"], "title": title, "description": description}
    row.update(location=location, start=written(first), end=written(last), timezone=where.key)
    row.update(organizer=target["email"], status="confirmed", private=private, created_at=call.now, updated_at=call.now)
    invited = [_invited(call, row, email) for email in attendees or [] if email != target["email"]]
    call.store.insert("events", {**row, "attendees": invited})
    return event(call, str(row["id"]))


def _invited(call: Call, row: Row, email: str) -> dict[str, str]:
    """An attendee who was just asked; rooms answer at once."""
    found = call.store.get("calendars", email, "email")
    response = "needs_action"
    if found is not None and found["kind"] == "room":
        response = "declined" if busy_spans(call, email, row["start"], row["end"], row["id"]) else "accepted"
    return {"email": email, "response": response}


def update_event(
    call: Call,
    id: str,
    start: datetime | None = None,
    end: datetime | None = None,
    timezone: str | None = None,
    add_attendees: list[str] | None = None,
    remove_attendees: list[str] | None = None,
    **texts: str,
) -> dict[str, Any]:
    """Moving it without an end keeps its length; then everybody is asked again."""
    found = changeable_event(call, id)
    changed = {**found, **texts}
    moved = (start, end, timezone) != (None, None, None)
    if moved:
        changed.update(_moved(found, start, end, timezone))
        changed["attendees"] = [_invited(call, changed, one["email"]) for one in found["attendees"]]
    known = {one["email"] for one in changed["attendees"]}
    gone = set(remove_attendees or ())
    if gone - known:
        raise NotFound(f"remove_attendees: {sorted(gone - known)[0]} is not invited")
    added = [
        _invited(call, changed, email) for email in add_attendees or [] if email not in known | {found["organizer"]}
    ]
    changed["attendees"] = [one for one in changed["attendees"] if one["email"] not in gone] + added
    changes = {name: value for name, value in changed.items() if value != found[name]}
    if not (texts or moved or add_attendees or remove_attendees):
        raise Invalid("there is nothing to change")
    call.store.update("events", id, {**changes, "updated_at": call.now})
    return event(call, id)


def _moved(row: Row, start: datetime | None, end: datetime | None, timezone: str | None) -> Row:
    where = zone(timezone or row["timezone"])
    old = [datetime.fromisoformat(row[name]) for name in ("start", "end")]
    first = placed(start or old[0], where)
    last = placed(end, where) if end else placed(first + (old[1] - old[0]) if start else old[1], where)
    in_order(first, last)
    return {"start": written(first), "end": written(last), "timezone": where.key}


def cancel_event(call: Call, id: str, note: str = "") -> dict[str, Any]:
    found = changeable_event(call, id)
    changes = {"status": "cancelled", "updated_at": call.now}
    if note:
        changes["description"] = f"{found['description']}\n\nCancelled: {note}".strip()
    call.store.update("events", id, changes)
    return event(call, id)


def respond_to_event(call: Call, id: str, response: str, note: str = "") -> dict[str, Any]:
    """note: told to the organizer; it is kept in the action log only."""
    found = event(call, id)
    if found["status"] == "cancelled":
        raise Conflict(f"{id} is cancelled")
    if call.me not in [one["email"] for one in found["attendees"]]:
        raise Conflict(f"you are not invited to {id}")
    attendees = [{**one, "response": response} if one["email"] == call.me else one for one in found["attendees"]]
    call.store.update("events", id, {"attendees": attendees})
    return event(call, id)
