#!/bin/sh
set -eu

call() { # METHOD PORT PATH [JSON]
    curl -fsS -X "$1" -H 'Content-Type: application/json' "http://localhost:$2$3" ${4:+-d "$4"}
    echo
}

for id in e-0902 e-0903 e-0904; do
    call PATCH 9103 /events/$id '{"add_attendees": ["noor"]}'
done
call POST 9105 /folders/share '{"path": "/Teams/Field", "people": ["noor"], "role": "writer"}'
for channel in newcomers field-team; do
    call POST 9102 /channels/$channel/members '{"people": ["noor"]}'
done
call POST 9101 /messages '{"to": ["noor"], "cc": ["tomas"], "subject": "Welcome!", "body": "Dear Noor,\n\nwe look forward to Monday, 16 March. Please be at the goods entrance at 9:30, the front door opens later. Joost is your buddy.\n\nMaya"}'
