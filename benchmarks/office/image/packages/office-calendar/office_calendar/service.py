"""The calendar service: its tables, the shapes of its answers, its operations, and how a world fills it."""

from __future__ import annotations

from datetime import datetime

from office_core.arguments import PAGE, choice, flag, line, number, people, text, time
from office_core.errors import Invalid
from office_core.service import COUNT, FLAG, TEXT, TIME, Operation, Service, list_of, listing, refer, shape
from office_core.store import Store, remember_last

from office_calendar import calendars, events
from office_calendar.calendars import ACCESS, KINDS
from office_calendar.events import RESPONSES, STATUSES
from office_calendar.times import in_order, zone

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from office_core.store import Row
    from office_core.worlds import Item, World

TABLES = """
create table calendars(id text primary key, name text not null, email text not null unique, kind text not null,
                       access text not null) without rowid;
create table events(id text primary key, calendar text not null references calendars, title text not null,
                    description text not null, location text not null, start text not null, "end" text not null,
                    timezone text not null, organizer text not null, attendees json not null, status text not null,
                    private boolean not null, created_at text not null, updated_at text not null);
create index events_by_calendar on events(calendar);
"""

SHAPES = {
    "Calendar": shape(
        id=TEXT,
        name=TEXT,
        email=TEXT,
        kind={"type": "string", "enum": list(KINDS)},
        access={"type": "string", "enum": list(ACCESS)},
    ),
    "Event": shape(
        id=TEXT,
        calendar=TEXT,
        title=TEXT,
        description=TEXT,
        location=TEXT,
        start=TIME,
        end=TIME,
        timezone=TEXT,
        organizer=TEXT,
        status={"type": "string", "enum": list(STATUSES)},
        private=FLAG,
        attendees=list_of(shape(email=TEXT, response={"type": "string", "enum": list(RESPONSES)})),
        created_at=TIME,
        updated_at=TIME,
    ),
    "Span": shape(start=TIME, end=TIME),
}
EVENT, EVENTS = refer("Event"), listing("events", "Event")
ID = {"id": line("Of an event: e-0007.", required=True)}
CALENDAR = {"calendar": line("Its id or address (GET /calendars); mine unless given.")}
ZONE = {"timezone": line("Of times without an offset: Europe/Amsterdam.")}
DETAILS = {"location": line(), "description": text()}
RANGE = {"from": time(required=True), "to": time(required=True)}
WHOSE = {"people": people("Addresses, handles or addresses of rooms.", required=True)}

OPERATIONS = (
    Operation(
        "list_calendars",
        "GET /calendars",
        calendars.list_calendars,
        "Calendars of people and rooms, and what I may do with them.",
        result=shape(calendars=list_of(refer("Calendar"))),
    ),
    Operation(
        "list_events",
        "GET /events",
        events.list_events,
        "The events of a calendar, by start.",
        {
            **CALENDAR,
            "from": time("Events that end after this."),
            "to": time("Events that start before this."),
            "cancelled": flag("true: cancelled ones too."),
            **PAGE,
        },
        result=EVENTS,
    ),
    Operation(
        "search_events",
        "GET /search",
        events.search_events,
        "Search the events that I may see: titles, descriptions, places, people.",
        {"q": line('Words and "phrases" that must all occur.', required=True), **PAGE},
        result=EVENTS,
    ),
    Operation("read_event", "GET /events/{id}", events.read_event, "An event.", ID, result=EVENT),
    Operation(
        "create_event",
        "POST /events",
        events.create_event,
        "Make an event and invite people and rooms.",
        {
            "title": line(required=True),
            "start": time(required=True),
            "end": time(required=True),
            **ZONE,
            "attendees": people("Addresses, handles or addresses of rooms; a room answers at once."),
            **DETAILS,
            "private": flag("Only those invited see what it is."),
            **CALENDAR,
        },
        result=EVENT,
        status=201,
    ),
    Operation(
        "update_event",
        "PATCH /events/{id}",
        events.update_event,
        "Change or move an event; when it moves, everybody is asked again.",
        {
            **ID,
            "title": line(),
            "start": time("Without `end`, it keeps its length."),
            "end": time(),
            **ZONE,
            **DETAILS,
            "add_attendees": people(),
            "remove_attendees": people(),
        },
        result=EVENT,
    ),
    Operation(
        "cancel_event",
        "POST /events/{id}/cancel",
        events.cancel_event,
        "Call an event off.",
        {**ID, "note": text("Why; it goes into the description.")},
        result=EVENT,
    ),
    Operation(
        "respond_to_event",
        "POST /events/{id}/respond",
        events.respond_to_event,
        "Answer an invitation.",
        {**ID, "response": choice(RESPONSES[1:], required=True), "note": text("For the organizer.")},
        result=EVENT,
    ),
    Operation(
        "free_busy",
        "GET /free-busy",
        calendars.free_busy,
        "When people and rooms are busy.",
        {**WHOSE, **RANGE},
        result=shape(busy={"type": "object", "additionalProperties": list_of(refer("Span"))}),
    ),
    Operation(
        "find_free_slots",
        "GET /free-slots",
        calendars.find_free_slots,
        "When all of them are free on weekdays, every half hour.",
        {
            **WHOSE,
            **RANGE,
            "minutes": number(5, 720, required=True),
            "day_start": line("09:00 unless given."),
            "day_end": line("17:00 unless given."),
            **ZONE,
            "limit": PAGE["limit"],
        },
        result=shape(slots=list_of(refer("Span")), total=COUNT),
    ),
)


def seed(world: World, store: Store) -> None:
    """Everybody of the company has a calendar; [[calendars]] has rooms, and what differs."""
    for person in world.people():
        email = world.emails[person["handle"]]
        if (
            email.endswith("@" + world.domain)
            and not world.has("calendars", person["handle"])
            and person.get("title") != "Group"
        ):
            access = "owner" if person["handle"] == world.me else "free_busy"
            row = {"id": person["handle"], "name": person["name"], "email": email, "kind": "person", "access": access}
            store.insert("calendars", row)
    for item in world.items("calendars"):
        id = item.text("id")
        known = world.emails.get(id, f"{id}@{world.domain}")
        row = {"id": id, "name": item.text("name", id), "email": item.text("email", known)}
        row["kind"] = item.choice("kind", KINDS, "person")
        row["access"] = item.choice("access", ACCESS, "owner" if id == world.me else "free_busy")
        store.insert("calendars", row)
        item.done()
    for item in world.items("events"):
        try:
            row = _event(item, store)
        except Invalid as problem:
            raise item.problem(problem.message) from None
        store.insert("events", row)
        item.done()
    remember_last(store, "events", "e-")


def _event(item: Item, store: Store) -> dict[str, Any]:
    world = item.world
    organizer = item.address(item.text("organizer", world.me))
    calendar = store.get("calendars", organizer, "email")
    id = item.text("calendar", calendar["id"] if calendar else world.me)
    if store.get("calendars", id) is None:
        raise item.problem(f"there is no calendar {id!r}")
    row: Row = {"id": item.text("id"), "calendar": id, "title": item.text("title"), "organizer": organizer}
    row.update(description=item.text("description", ""), location=item.text("location", ""))
    row.update(start=item.time("start"), end=item.time("end"), timezone=zone(item.text("timezone", world.timezone)).key)
    in_order(datetime.fromisoformat(str(row["start"])), datetime.fromisoformat(str(row["end"])))
    row.update(status=item.choice("status", STATUSES, "confirmed"), private=item.flag("private", False))
    created = item.time("created_at", world.now)
    return {**row, "attendees": _attendees(item, store), "created_at": created, "updated_at": created}


def _attendees(item: Item, store: Store) -> list[dict[str, str]]:
    found = []
    for given in item.value("attendees", []):
        one = {"email": given, "response": "needs_action"} if isinstance(given, str) else dict(given)
        if set(one) != {"email", "response"} or one["response"] not in RESPONSES:
            raise item.problem(f"an attendee has email and response ({', '.join(RESPONSES)}), not {given}")
        calendar = store.get("calendars", one["email"])  # a room has no handle, but a calendar
        email = calendar["email"] if calendar else item.address(one["email"])
        found.append({"email": email, "response": one["response"]})
    return found


SERVICE = Service(
    "calendar",
    9103,
    "calendars of people and rooms: events, invitations, free times.",
    tables=TABLES,
    shapes=SHAPES,
    operations=OPERATIONS,
    seed=seed,
)
