#!/bin/sh
set -eu

call() { # METHOD PORT PATH [JSON]
    curl -fsS -X "$1" -H 'Content-Type: application/json' "http://localhost:$2$3" ${4:+-d "$4"}
    echo
}

for id in m-0901 m-0902 m-0904 m-0905 m-0906 m-0907; do
    call POST 9101 /messages/$id/archive
done
