"""The table has the numbers that hold, and their sum."""

from office_check import Check
from office_check.outcomes import numbers, strays

REGIONS = {"Rotterdam": 24, "Ghent": 17, "Hamburg": 19, "Bergen": 12, "Porto": 23}
TOTAL = sum(REGIONS.values())
TAKEN_BACK = 26

check = Check()
table = {}
for line in check.documents.documents["d-0901"].body.splitlines():
    first, _, rest = line.strip().strip("|").partition("|")
    table.setdefault(first.strip(" *_").casefold(), numbers(rest))

for region, gauges in REGIONS.items():
    found = table.get(region.casefold(), [])
    check.item(
        region, found[:1] == [gauges], f"it should be {gauges}, and is {found}", weight=1 if region != "Ghent" else 2
    )
total = table.get("total", [])
check.item("total", total[:1] == [TOTAL], f"it should be {TOTAL}, and is {total}", weight=2)

wrong_total = TOTAL - REGIONS["Ghent"] + TAKEN_BACK
stale = table.get("ghent", [])[:1] == [TAKEN_BACK] or total[:1] == [wrong_total]
check.forbid("it has the number that Ghent took back", stale, cap=0.3)
kept = (
    "# Installations, February 2026",
    "Gauges that Peilpartners put up for us in February, by region.",
    "Ines needs this for the board.",
)
check.forbid(
    "text around the table is gone",
    [line for line in kept if line not in check.documents.documents["d-0901"].body],
    cap=0.5,
)
check.forbid("something else was changed", strays(check, documents_documents={"d-0901"}), cap=0.4)
check.finish()
