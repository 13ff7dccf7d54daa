#!/bin/sh
set -eu

call() { # METHOD PORT PATH [JSON]
    curl -fsS -X "$1" -H 'Content-Type: application/json' "http://localhost:$2$3" ${4:+-d "$4"}
    echo
}

move() { # ID PATH
    call POST 9105 "/files/$1/move" "{\"path\": \"$2\"}"
}

call POST 9105 /folders '{"path": "/Contracts/Porto de Leixões"}'
move f-0911 /Contracts/Norrvatten/scan-0311-1.txt
move f-0912 "/Contracts/Porto de Leixões/scan-0311-2.txt"
move f-0915 "/Contracts/Delta Waters/scan-0311-5.txt"
move f-0916 /Contracts/Norrvatten/scan-0311-6.txt
call POST 9105 /folders/share '{"path": "/Contracts", "people": ["ruth"], "role": "reader"}'
