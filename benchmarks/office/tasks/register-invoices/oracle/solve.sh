#!/bin/sh
set -eu

call() { # METHOD PORT PATH [JSON]
    curl -fsS -X "$1" -H 'Content-Type: application/json' "http://localhost:$2$3" ${4:+-d "$4"}
    echo
}

call POST 9105 /files/f-0901/append '{"content": "24-1264,Kabelwerk Nord,2026-03-06,1140.00,open\nDR-0091,De Ridder Transport,2026-03-10,432.40,open\nBL-5512,Probelab,2026-03-11,780.00,open\n24-1271,Kabelwerk Nord,2026-03-10,288.60,open\n"}'
for id in m-0901 m-0902 m-0903 m-0904; do
    call POST 9101 /messages/$id/labels '{"add": ["registered"]}'
done
call POST 9102 /direct-messages '{"to": ["ines"], "text": "Four new invoices are registered. Together they come to EUR 2,641.00."}'
