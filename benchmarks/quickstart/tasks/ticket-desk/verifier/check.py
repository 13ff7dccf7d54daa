"""Looks at the desk's database itself, so that the answer doesn't depend on the service being alive."""

import importlib.util
import json
import re
import sqlite3
from collections import defaultdict
from pathlib import Path

spec = importlib.util.spec_from_file_location("seed", "/verifier/seed.py")
seed = importlib.util.module_from_spec(spec)
spec.loader.exec_module(seed)


def state(database):
    comments = defaultdict(list)
    for ticket, text in database.execute("select ticket, text from comments order by id"):
        comments[ticket].append(text)
    rows = database.execute("select id, customer, title, status, priority, duplicate_of from tickets")
    return {row[0]: (*row, comments[row[0]]) for row in rows}


fresh = sqlite3.connect(":memory:")
seed.fill(fresh)
before = state(fresh)
after = state(sqlite3.connect("file:/var/lib/desk/desk.db?mode=ro", uri=True))

groups = defaultdict(list)
for number, customer, title, status, *_ in before.values():
    if status == "open":
        words = re.sub(r"\s+", " ", re.sub(r"[^\w\s]", "", title)).strip().casefold()
        groups[customer, words].append(number)
groups = [sorted(group) for group in groups.values() if len(group) > 1]

expected = dict(before)
for kept, *others in groups:
    urgency = min(before[number][4] for number in (kept, *others))
    note = f"Duplicates: {', '.join(map(str, others))}"
    expected[kept] = (*before[kept][:4], urgency, None, [*before[kept][6], note])
    for number in others:
        expected[number] = (*before[number][:3], "duplicate", before[number][4], kept, before[number][6])

right = 0
for group in groups:
    wrong = [number for number in group if after.get(number) != expected[number]]
    right += not wrong
    for number in wrong:
        print(f"FAIL  ticket {number}: expected {expected[number]}, got {after.get(number)}")
grouped = {number for group in groups for number in group}
strays = sorted(
    number
    for number in before.keys() | after.keys()
    if number not in grouped and after.get(number) != before.get(number)
)
if strays:
    print(f"FAIL  changed without reason: {strays}")
print(f"{right} of {len(groups)} groups are right")
Path("/logs/verifier/reward.json").write_text(
    json.dumps(
        {
            "reward": 0.0 if strays else round(right / len(groups), 6),
            "groups": len(groups),
            "groups_right": right,
            "strays": len(strays),
        }
    )
)
