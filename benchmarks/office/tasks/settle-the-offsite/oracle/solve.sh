#!/bin/sh
set -eu

call() { # METHOD PORT PATH [JSON]
    curl -fsS -X "$1" -H 'Content-Type: application/json' "http://localhost:$2$3" ${4:+-d "$4"}
    echo
}

call GET 9102 /messages/msg-0901/thread
call POST 9103 /events '{"title": "Offsite at the boathouse", "location": "Boathouse Veere", "start": "2026-04-23T09:00:00", "end": "2026-04-23T17:00:00", "attendees": ["priya", "ines", "carla", "henrik", "joost"]}'
call POST 9101 /messages/m-0901/reply '{"body": "Dear Ms Vos,\n\nwe take Thursday, 23 April. There will be 6 guests, me included.\n\nKind regards,\nMaya Okafor"}'
