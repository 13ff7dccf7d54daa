#!/bin/sh
set -eu

call() { # METHOD PORT PATH [JSON]
    curl -fsS -X "$1" -H 'Content-Type: application/json' "http://localhost:$2$3" ${4:+-d "$4"}
    echo
}

call GET 9103 /events/e-0901
call POST 9105 /files/f-0901/share '{"people": ["anna.lindgren@tidemark.example"], "role": "reader"}'
call POST 9101 /messages/m-0901/reply '{"body": "Hi Anna, here you are: you can open /People/pay-review-2026.csv (f-0901) now."}'
