#!/bin/sh
exec python3 - <<'PY'
import json
from urllib.parse import urlencode
from urllib.request import Request, urlopen

CALENDAR = "http://localhost:9103"
PEOPLE = ["maya", "lena", "tomas", "priya"]
ROOM = "room-alder"

room = next(one for one in json.load(urlopen(f"{CALENDAR}/calendars"))["calendars"] if one["id"] == ROOM)
asked = {
    "people": ",".join([*PEOPLE, room["email"]]),
    "from": "2026-03-16T00:00:00",
    "to": "2026-03-21T00:00:00",
    "minutes": 60,
}
slot = json.load(urlopen(f"{CALENDAR}/free-slots?{urlencode(asked)}"))["slots"][0]
event = {"title": "Tender review", **slot, "attendees": [*PEOPLE[1:], room["email"]], "location": room["name"]}
data = json.dumps(event).encode()
print(urlopen(Request(f"{CALENDAR}/events", data, {"Content-Type": "application/json"})).read().decode())
PY
