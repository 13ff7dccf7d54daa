#!/bin/sh
set -eu

call() { # METHOD PORT PATH [JSON]
    curl -fsS -X "$1" -H 'Content-Type: application/json' "http://localhost:$2$3" ${4:+-d "$4"}
    echo
}

call POST 9103 /events/e-0902/cancel '{"note": "Alder is being painted."}'
call POST 9102 /channels/design/messages '{"text": "Alder is being painted on Wednesday, 18 March: the design review at 10:00 is cancelled."}'
