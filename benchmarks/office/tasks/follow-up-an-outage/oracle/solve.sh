#!/bin/sh
set -eu

call() { # METHOD PORT PATH [JSON]
    curl -fsS -X "$1" -H 'Content-Type: application/json' "http://localhost:$2$3" ${4:+-d "$4"}
    echo
}

id_of() {
    python3 -c 'import json, sys; print(json.load(sys.stdin)["id"])'
}

report=$(call POST 9104 /documents '{"title": "Incident 2026-03-10 Norrvatten", "body": "Start: 2026-03-10 13:52\nEnd: 2026-03-10 15:37\nDuration: 105 minutes\nCause: the certificate of the gateway had expired\nGauges: 17\n"}' | id_of)
call POST 9105 /files/f-0902/copy '{"path": "/Incidents/2026-03-10/gateway-norrvatten-2026-03-10.log"}'
call GET 9103 '/free-slots?people=maya,noor,yusuf,lena&from=2026-03-12T09:00:00&to=2026-03-17T17:00:00&minutes=45'
call POST 9103 /events '{"title": "Review of the Norrvatten outage", "start": "2026-03-16T13:30:00", "end": "2026-03-16T14:15:00", "attendees": ["noor", "yusuf", "lena"]}'
call POST 9102 /messages/msg-0902/replies "{\"text\": \"The report is $report.\"}"
call POST 9101 /messages/m-0901/reply '{"body": "Dear Anna,\n\nyou had no data from 13:52 to 15:37 on Tuesday, because the certificate of your gateway had expired. It has a new one. We review what happened on Monday, 16 March.\n\nI am sorry for the trouble.\nMaya"}'
