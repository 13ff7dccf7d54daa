#!/bin/sh
set -eu

call() { # METHOD PORT PATH [JSON]
    curl -fsS -X "$1" -H 'Content-Type: application/json' "http://localhost:$2$3" ${4:+-d "$4"}
    echo
}

call GET 9104 /documents/d-0901
call POST 9101 /messages/m-0901/reply '{"body": "Dear Dirk,\n\n1. With a report every 5 minutes a battery lasts 31 months.\n2. The TM-40 may be stored at -35 °C and above.\n\nKind regards,\nMaya"}'
