#!/bin/sh
set -eu

call() { # METHOD PORT PATH [JSON]
    curl -fsS -X "$1" -H 'Content-Type: application/json' "http://localhost:$2$3" ${4:+-d "$4"}
    echo
}

id_of() {
    python3 -c 'import json, sys; print(json.load(sys.stdin)["id"])'
}

call GET 9102 /messages/msg-0903/thread
document=$(call POST 9104 /documents '{"title": "TM-40 launch decisions", "body": "# TM-40 launch decisions\n\n- Ship date: 21 April (14 April is off, the mould comes a week late)\n- List price: EUR 1,450, brackets included\n- Housing: slate grey\n- Pilot customer: Norrvatten\n- Training of the dealers: Noor\n"}' | id_of)
call POST 9104 "/documents/$document/share" '{"people": ["tomas", "lena", "priya", "joost", "noor"], "role": "reader"}'
call POST 9102 /channels/tm40-launch/messages "{\"text\": \"What we have decided: $document\"}"
