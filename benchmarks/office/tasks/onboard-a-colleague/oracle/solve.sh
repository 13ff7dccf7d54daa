#!/bin/sh
set -eu

call() { # METHOD PORT PATH [JSON]
    curl -fsS -X "$1" -H 'Content-Type: application/json' "http://localhost:$2$3" ${4:+-d "$4"}
    echo
}

for id in e-0901 e-0902 e-0903; do
    call PATCH 9103 /events/$id '{"add_attendees": ["nadia"]}'
done
call POST 9105 /folders/share '{"path": "/Operations", "people": ["nadia"], "role": "writer"}'
for channel in newcomers operations; do
    call POST 9102 /channels/$channel/members '{"people": ["nadia"]}'
done
call POST 9101 /messages '{"to": ["nadia"], "cc": ["noor"], "subject": "Welcome!", "body": "Dear Nadia,\n\nwe look forward to Monday, 16 March. Please be at the goods entrance at 9:30, the front door opens later. Sam is your buddy.\n\nMaya"}'
