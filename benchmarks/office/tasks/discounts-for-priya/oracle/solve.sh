#!/bin/sh
set -eu

call() { # METHOD PORT PATH [JSON]
    curl -fsS -X "$1" -H 'Content-Type: application/json' "http://localhost:$2$3" ${4:+-d "$4"}
    echo
}

call GET 9103 /events/e-0901
call POST 9105 /files/f-0901/share '{"people": ["priya"], "role": "reader"}'
call POST 9101 /messages/m-0901/reply '{"body": "Hi Priya, here you are: you can open /Price control/discounts-2026.csv (f-0901) now."}'
