"""The five decisions as they are now, in a document that the whole channel can read and knows of."""

from office_check import Check
from office_check.outcomes import names_date, numbers, strays

check = Check()
new = check.documents.added("documents", title__says="TM-40 launch decisions", trashed=False)
document = new[0] if new else None
text = document.body if document else ""

facts = {
    "ship date": names_date(text, "2026-04-21"),
    "list price": 1450 in numbers(text),
    "housing colour": check.says(text, "grey", "gray"),
    "pilot customer": check.says(text, "Norrvatten"),
    "who trains the dealers": check.says(text, "Noor"),
}
for fact, right in facts.items():
    check.item(fact, right, "it is not in the document")

channel = check.chat.channels["tm40-launch"]
others = {check.chat.people[handle].email for handle in channel.members} - {check.chat.people["maya"].email}
readers = {one["email"] for one in document.shared} if document else set()
check.item("everybody in the channel can read it", others <= readers, f"not {sorted(others - readers)}")
posts = check.chat.added("messages", channel="tm40-launch")
check.item("its id is posted", bool(document) and any(document.id in post.text for post in posts), "not in the channel")

stale = names_date(text, "2026-04-14") and not facts["ship date"]
check.forbid("it has the ship date that was taken back", stale, cap=0.3)
check.forbid("others than the channel can read it", readers - others, cap=0.4)
ids = {row.id for row in new}
check.forbid(
    "something else was changed",
    strays(check, documents_documents=ids, chat_messages={post.id for post in posts}),
    cap=0.4,
)
check.finish()
