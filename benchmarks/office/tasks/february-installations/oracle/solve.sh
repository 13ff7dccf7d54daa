#!/bin/sh
set -eu

call() { # METHOD PORT PATH [JSON]
    curl -fsS -X "$1" -H 'Content-Type: application/json' "http://localhost:$2$3" ${4:+-d "$4"}
    echo
}

fill() { # OLD NEW
    call POST 9104 /documents/d-0901/edit "{\"old\": \"$1\", \"new\": \"$2\"}"
}

fill '| Rotterdam | |' '| Rotterdam | 24 |'
fill '| Ghent | |' '| Ghent | 17 |'
fill '| Hamburg | |' '| Hamburg | 19 |'
fill '| Bergen | |' '| Bergen | 12 |'
fill '| Porto | |' '| Porto | 23 |'
fill '| **total** | |' '| **total** | 95 |'
