#!/bin/sh
set -eu

call() { # METHOD PORT PATH [JSON]
    curl -fsS -X "$1" -H 'Content-Type: application/json' "http://localhost:$2$3" ${4:+-d "$4"}
    echo
}

call POST 9101 /messages/m-0901/reply '{"body": "Dear Anna,\n\nour offer 2026-017, level gauges for the lower reservoirs:\n\n- 18 TM-40 level gauges with bracket at EUR 1,420: EUR 25,560\n- their installation on site at EUR 160 each: EUR 2,880\n- total, without VAT: EUR 28,440\n\nDelivery within six weeks of the order. Payment within 30 days. The offer is valid until 30 April 2026.\n\nKind regards,\nMaya"}'
