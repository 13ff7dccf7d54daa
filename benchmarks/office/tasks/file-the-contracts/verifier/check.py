"""Four contracts lie with their customers; the scans that are none, or not signed, stayed."""

from office_check import Check
from office_check.outcomes import strays

CONTRACTS = {"f-0911": "norrvatten", "f-0912": "porto", "f-0915": "delta waters", "f-0916": "norrvatten"}
OTHERS = ("f-0913", "f-0914")

check = Check()
before = check.before.files.files
kept = [file for file in check.files.files if not file.trashed]


def lies_in(customer, original):
    """The files below the folder of a customer that have the name and the content of an original."""
    name = original.path.rpartition("/")[2]
    return [
        file
        for file in kept
        if file.path.casefold().startswith(f"/contracts/{customer}")
        and file.path.count("/") == 3
        and file.path.endswith(f"/{name}")
        and file.content == original.content
    ]


for id, customer in CONTRACTS.items():
    original = before[id]
    moved = lies_in(customer, original) and original.path not in [file.path for file in kept]
    check.item(f"{original.path} is with {customer}", bool(moved), "it is not there, or still where it was")

ruth = check.files.people["ruth"].email
role = {"email": ruth, "role": "reader"}
shared = role in check.files.folders["/Contracts"].shared
check.item("Ruth can read the contracts", shared, "/Contracts is not shared with her for reading")

moved = [id for id in OTHERS if check.files.files[id].path != before[id].path or check.files.files[id].trashed]
check.forbid("another scan was moved", moved, cap=0.4)
contents = {before[id].content for id in CONTRACTS}
check.forbid(
    "something else was changed",
    strays(
        check,
        files_files=lambda row: row.content in contents,
        files_folders=lambda row: row.path == "/Contracts" or row.path.casefold().startswith("/contracts/porto"),
    ),
    cap=0.4,
)
check.finish()
