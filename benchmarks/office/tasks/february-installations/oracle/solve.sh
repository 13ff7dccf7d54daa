#!/bin/sh
set -eu

call() { # METHOD PORT PATH [JSON]
    curl -fsS -X "$1" -H 'Content-Type: application/json' "http://localhost:$2$3" ${4:+-d "$4"}
    echo
}

fill() { # OLD NEW
    call POST 9104 /documents/d-0901/edit "{\"old\": \"$1\", \"new\": \"$2\"}"
}

fill '| Rotterdam | |' '| Rotterdam | 204 |'
fill '| Ghent | |' '| Ghent | 118 |'
fill '| Hamburg | |' '| Hamburg | 97 |'
fill '| Bergen | |' '| Bergen | 52 |'
fill '| Porto | |' '| Porto | 143 |'
fill '| **total** | |' '| **total** | 614 |'
