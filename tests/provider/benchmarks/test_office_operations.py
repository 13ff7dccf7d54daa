"""What each operation of the office services does, and that its answer has the shape that OpenAPI promises."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.office_services import Answer, Running, problem_with

DIRK, ANNA, MAYA = (
    "dirk.pauwels@deltawaters.example",
    "anna.lindqvist@norrvatten.example",
    "maya.okafor@tidemark.example",
)
NOOR, JOOST, INES = "noor.haddad@tidemark.example", "joost.dewit@tidemark.example", "ines.carvalho@tidemark.example"


class Desk:
    """A service whose answers are held against its OpenAPI document. used: operations that have succeeded."""

    def __init__(self, running: Running) -> None:
        self.running = running
        self.document = running.get("/openapi.json")
        self.used: set[str] = set()
        self.known = {
            f"{method.upper()} {path}": operation
            for path, methods in self.document["paths"].items()
            for method, operation in methods.items()
        }

    def ask(self, route: str, *parts: str, **arguments: Any) -> Any:
        """`POST /messages/{id}/reply`, with the parts of its path; it must succeed."""
        answer = self._call(route, parts, arguments)
        operation = self.known[route]
        schema = operation["responses"][str(answer.status)]["content"]["application/json"]["schema"]
        assert problem_with(answer.body, schema, self.document) is None, route
        self.used.add(operation["operationId"])
        return answer.body

    def refused(self, route: str, *parts: str, **arguments: Any) -> tuple[int, str]:
        """The status and the message."""
        answer = self._call(route, parts, arguments)
        assert problem_with(answer.body, self.document["components"]["schemas"]["Error"], self.document) is None
        return answer.status, answer.body["error"]["message"]

    def _call(self, route: str, parts: tuple[str, ...], arguments: dict[str, Any]) -> Answer:
        path = route
        for part in parts:
            name = path[path.index("{") : path.index("}") + 1]
            path = path.replace(name, part, 1)
        return self.running.call(path, **arguments)

    def finish(self) -> None:
        """Every operation that there is has been asked for."""
        assert {operation["operationId"] for operation in self.known.values()} == self.used
        assert 500 not in {entry["status"] for entry in self.running.actions()}


@pytest.fixture
def desk(start: Callable[..., Running], request: pytest.FixtureRequest) -> Desk:
    return Desk(start(request.param))


def at(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("desk", [name], indirect=True)


@at("mail")
def test_mail(desk: Desk) -> None:
    assert desk.ask("GET /me")["person"]["email"] == MAYA
    assert [one["handle"] for one in desk.ask("GET /people", q="delta")["people"]] == ["dirk", "priya-ramos"]

    # reading
    assert desk.ask("GET /accounts")["accounts"][0]["folders"]["inbox"]["unread"] == 4
    unread = desk.ask("GET /messages", folder="inbox", unread=True)
    assert (unread["total"], [one["id"] for one in unread["messages"]]) == (4, ["m-0057", "m-0054", "m-0048", "m-0046"])
    assert desk.ask("GET /messages", label="audit")["total"] == 1
    page = desk.ask("GET /messages", limit=2, offset=1)["messages"]
    assert [one["id"] for one in page] == ["m-0059", "m-0058"]
    assert [one["id"] for one in desk.ask("GET /search", q="pallet claim")["messages"]] == ["m-0016", "m-0015"]
    found = desk.ask("GET /search", q='from:dirk after:2026-02-19 is:read in:archive "better than"')
    assert [one["id"] for one in found["messages"]] == ["m-0023"]
    assert "better than" in found["messages"][0]["snippet"]
    assert desk.ask("GET /search", q="has:attachment to:miguel label:x")["total"] == 0
    assert desk.refused("GET /search", q="in:attic") == (400, "q: in:attic is not understood")
    assert desk.refused("GET /search", q="before:easter")[0] == 400
    assert desk.ask("GET /messages/{id}", "m-0046")["read"] is False
    thread = desk.ask("GET /threads/{thread}", "t-0038")["messages"]
    assert [one["id"] for one in thread] == ["m-0038", "m-0039", "m-0040"]
    assert {"name": "newsletter", "total": 2} in desk.ask("GET /labels")["labels"]

    # filing
    assert desk.ask("POST /messages/{id}/mark", "m-0046", read=True)["read"] is True
    assert desk.ask("POST /messages/{id}/labels", "m-0046", add=["Vans", "todo"], remove=["x"])["labels"] == [
        "vans",
        "todo",
    ]
    assert desk.refused("POST /messages/{id}/labels", "m-0046")[0] == 400
    assert desk.ask("POST /messages/{id}/archive", "m-0046")["folder"] == "archive"
    assert desk.ask("POST /messages/{id}/move", "m-0046", folder="inbox")["folder"] == "inbox"
    assert desk.ask("DELETE /messages/{id}", "m-0055")["folder"] == "trash"
    assert desk.refused("POST /messages/{id}/archive", "m-0059")[0] == 409

    # writing
    sent = desk.ask(
        "POST /messages",
        to=["Dirk", "dirk", "Anna L <ANNA.LINDQVIST@norrvatten.example>"][1:],
        subject="A",
        body="B",
        bcc=["noor"],
    )
    assert (sent["id"], sent["to"], sent["bcc"], sent["folder"]) == ("m-0061", [DIRK, ANNA], [NOOR], "sent")
    assert desk.refused("POST /messages", to=["nobody"], subject="A", body="B")[1].startswith("to: 'nobody' is neither")
    assert desk.refused("POST /messages", to=[], subject="A", body="B") == (400, "to: must not be empty")
    assert desk.refused("POST /messages", to=["dirk"], subject="two\nlines", body="B")[0] == 400
    assert desk.refused("POST /messages", to=["dirk"], subject="A", body="B", account="noor")[0] == 404
    bad = [{"name": "x"}]
    assert desk.refused("POST /messages", to=["dirk"], subject="A", body="B", attachments=bad) == (
        400,
        "attachments: needs 'link'",
    )
    desk.ask("POST /messages", to=["maya"], subject="To myself", body="!")
    copy = desk.ask("GET /messages", folder="inbox", limit=1)["messages"][0]
    assert (copy["id"], copy["subject"], copy["read"]) == ("m-0063", "To myself", False)
    reply = desk.ask("POST /messages/{id}/reply", "m-0007", body="Thanks")
    assert (reply["to"], reply["cc"], reply["subject"]) == (
        ["petra.kowalczyk@silesiaboards.example"],
        [],
        "Re: Lead time of the TM-30 main board",
    )
    everyone = desk.ask("POST /messages/{id}/reply", "m-0042", body="Thanks", all=True, cc=["sam"])
    assert everyone["cc"] == ["sam.whitlock@tidemark.example", NOOR, "tomas.novak@tidemark.example"]
    assert desk.ask("POST /messages/{id}/reply", "m-0003", body="One more thing")["to"] == [
        "miguel.santos@brightpath.example"
    ]
    forwarded = desk.ask("POST /messages/{id}/forward", "m-0016", to=["ines"], body="For you")
    assert forwarded["subject"] == "Fwd: Re: Pallet 7741 delivered, two boxes damaged"
    assert forwarded["attachments"] == [{"name": "claim-7741.txt", "link": "f-0005"}]
    assert forwarded["body"].startswith("For you\n\n----------") and "nine of the twenty" in forwarded["body"].lower()

    # drafts
    draft = desk.ask("POST /drafts", subject="Later", in_reply_to="m-0024")
    assert (draft["folder"], draft["to"], draft["thread"]) == ("drafts", [], "t-0024")
    assert desk.refused("POST /drafts/{id}/send", draft["id"]) == (400, "to: somebody must get it")
    assert desk.ask("PATCH /drafts/{id}", draft["id"], to=["priya-ramos"], body="Hello")["body"] == "Hello"
    assert desk.ask("POST /drafts/{id}/send", draft["id"])["folder"] == "sent"
    assert desk.refused("PATCH /drafts/{id}", draft["id"], body="x")[0] == 409
    desk.finish()


@at("chat")
def test_chat(desk: Desk) -> None:
    desk.ask("GET /me"), desk.ask("GET /people")
    mine = desk.ask("GET /channels", member=True)["channels"]
    assert "audit-2026" in [one["id"] for one in mine] and "engineering" not in [one["id"] for one in mine]
    assert desk.ask("GET /channels", kind="private")["total"] == 1  # the heads' channel is not for her
    assert desk.refused("GET /channels/{channel}", "management") == (404, "there is no channel 'management'")
    assert desk.ask("GET /channels/{channel}", "general")["topic"] == "What concerns everybody"

    # reading
    newest = desk.ask("GET /channels/{channel}/messages", "operations", limit=2)
    assert [one["text"][:6] for one in newest["messages"]] == ["Fifty ", "Bergen"]
    assert newest["messages"][1]["replies"] == 1
    span = {"after": "2026-03-03T17:00:00+01:00", "before": "2026-03-04T08:13:00Z"}
    assert desk.ask("GET /channels/{channel}/messages", "operations", **span)["total"] == 2
    thread = desk.ask("GET /messages/{id}/thread", newest["messages"][1]["id"])
    assert [one["author"] for one in thread["replies"]] == ["noor"]
    reply = thread["replies"][0]["id"]
    assert desk.ask("GET /messages/{id}/thread", reply) == thread
    assert desk.ask("GET /messages/{id}", reply)["thread"] == thread["message"]["id"]
    assert desk.ask("GET /search", q="from:noor in:support sim")["total"] == 2
    assert desk.ask("GET /search", q="board before:2026-03-01 after:2026-02-01")["total"] == 1
    assert desk.ask("GET /search", q="provisional")["total"] == 0  # it was said among the heads

    # writing
    assert desk.refused("POST /channels/{channel}/messages", "engineering", text="Hi")[0] == 403
    assert "maya" in desk.ask("POST /channels/{channel}/join", "engineering")["members"]
    posted = desk.ask("POST /channels/{channel}/messages", "engineering", text="Hi")
    assert (posted["id"], posted["author"], posted["posted_at"][:10]) == ("msg-0088", "maya", "2026-03-12")
    answer = desk.ask("POST /messages/{id}/replies", reply, text="Thank you")
    assert answer["thread"] == thread["message"]["id"]
    assert desk.ask("PATCH /messages/{id}", posted["id"], text="Hello")["edited"] is True
    assert desk.refused("PATCH /messages/{id}", reply, text="Never") == (403, f"{reply} is a message of noor")
    assert desk.ask("POST /messages/{id}/reactions", reply, emoji=":tada:")["reactions"] == [
        {"emoji": "tada", "people": ["maya"]}
    ]
    assert desk.ask("DELETE /messages/{id}/reactions/{emoji}", reply, "tada")["reactions"] == []
    assert desk.refused("DELETE /messages/{id}/reactions/{emoji}", reply, "tada")[0] == 404
    assert desk.ask("DELETE /messages/{id}", posted["id"])["text"] == "Hello"
    assert desk.refused("GET /messages/{id}", posted["id"])[0] == 404
    direct = desk.ask("POST /direct-messages", to=["joost", NOOR], text="You two")
    assert direct["channel"] == "direct-joost-maya-noor" and direct["id"] != posted["id"]
    assert desk.ask("POST /direct-messages", to=["sam"], text="You")["channel"] == "direct-maya-sam"
    assert desk.refused("POST /direct-messages", to=["maya"], text="Me")[0] == 400
    assert desk.refused("POST /direct-messages", to=["stranger@else.example"], text="Hi")[0] == 400

    # channels
    made = desk.ask("POST /channels", name="visit-may", kind="private", members=["sam"])
    assert made["members"] == ["maya", "sam"]
    assert desk.refused("POST /channels", name="visit-may")[0] == 409
    assert desk.refused("POST /channels", name="Visit May")[0] == 400
    assert desk.ask("PATCH /channels/{channel}", "visit-may", topic="Guests")["topic"] == "Guests"
    assert desk.ask("POST /channels/{channel}/members", "visit-may", people=["noor", "sam"])["members"] == [
        "maya",
        "sam",
        "noor",
    ]
    desk.ask("POST /channels/{channel}/leave", "visit-may")
    assert desk.refused("GET /channels/{channel}", "visit-may")[0] == 404
    assert desk.refused("POST /channels/{channel}/leave", "direct-maya-sam")[0] == 409
    desk.finish()


@at("calendar")
def test_calendar(desk: Desk) -> None:
    desk.ask("GET /me"), desk.ask("GET /people")
    calendars = {one["id"]: one for one in desk.ask("GET /calendars")["calendars"]}
    assert (calendars["maya"]["access"], calendars["henrik"]["access"], calendars["lena"]["access"]) == (
        "owner",
        "read",
        "free_busy",
    )
    alder = calendars["room-alder"]["email"]

    # reading
    march = desk.ask("GET /events", from_="2026-03-01", to="2026-03-12")
    assert [one["title"] for one in march["events"]] == [
        "Operations weekly",
        "Stock count",
        "Operations weekly",
        "Yearly talk",
    ]
    assert desk.refused("GET /events", calendar="lena")[0] == 403
    titles = [one["title"] for one in desk.ask("GET /events", calendar="henrik")["events"]]
    assert "Board meeting" in titles and "Credit line: signing at the bank" not in titles
    assert desk.ask("GET /events", calendar="henrik", cancelled=True)["total"] == len(titles) + 1
    assert [one["id"] for one in desk.ask("GET /search", q="temse dirk")["events"]] == ["e-0007"]
    assert desk.ask("GET /events/{id}", "e-0007")["organizer"] == "sam.whitlock@tidemark.example"
    assert desk.refused("GET /events/{id}", "e-0016")[0] == 404

    # busy and free
    busy = desk.ask("GET /free-busy", people=["henrik", "lena", alder], from_="2026-03-03", to="2026-03-06")["busy"]
    assert [one["start"] for one in busy["henrik.dahl@tidemark.example"]] == [
        "2026-03-03T09:00:00+01:00",
        "2026-03-04T11:00:00+01:00",
    ]
    assert busy[alder] == [{"start": "2026-03-03T09:00:00+01:00", "end": "2026-03-03T10:00:00+01:00"}]
    assert desk.refused("GET /free-busy", people=["dirk"], from_="2026-03-03", to="2026-03-06") == (
        404,
        f"{DIRK} has no calendar here",
    )
    week = {"people": ["maya", "henrik"], "from_": "2026-03-30T16:00", "to": "2026-04-01", "minutes": 60}
    slots = desk.ask("GET /free-slots", **week, day_end="14:00")
    assert [one["start"][:16] for one in slots["slots"]][-2:] == ["2026-03-31T11:30", "2026-03-31T12:00"]
    assert (slots["slots"][0]["start"], slots["total"]) == ("2026-03-31T09:00:00+02:00", 7)
    weekend = {"people": ["maya"], "from_": "2026-03-14", "to": "2026-03-16", "minutes": 30}
    assert desk.ask("GET /free-slots", **weekend)["total"] == 0
    assert desk.refused("GET /free-slots", people=["maya"], from_="2026-03-02", to="2026-03-01", minutes=30)[0] == 400
    assert desk.refused("GET /free-slots", people=["maya"], from_="2026-03-02", to="2027-03-01", minutes=30)[0] == 400

    # writing
    times = {"start": "2026-03-16T10:00:00-04:00", "end": "2026-03-16T15:00:00Z"}
    made = desk.ask("POST /events", title="Call", **times, attendees=["maya", "dirk", alder], private=True)
    assert (made["id"], made["start"], made["end"]) == (
        "e-0027",
        "2026-03-16T15:00:00+01:00",
        "2026-03-16T16:00:00+01:00",
    )
    assert made["attendees"] == [{"email": DIRK, "response": "needs_action"}, {"email": alder, "response": "accepted"}]
    again = desk.ask("POST /events", title="Clash", **times, attendees=[alder])
    assert again["attendees"] == [{"email": alder, "response": "declined"}]
    assert desk.refused("POST /events", title="Back", start="2026-03-16T10:00", end="2026-03-16T09:00")[0] == 400
    assert desk.refused("POST /events", title="Zone", **times, timezone="Mars/Base")[0] == 400
    assert desk.refused("POST /events", title="Not mine", **times, calendar="henrik")[0] == 403
    assert desk.refused("POST /events", title="When", start="soon", end="later")[1].startswith("start: must be a time")
    moved = desk.ask("PATCH /events/{id}", "e-0025", start="2026-05-21T14:00", add_attendees=["noor"], title="Visit")
    assert (moved["start"], moved["end"]) == ("2026-05-21T14:00:00+02:00", "2026-05-21T16:00:00+02:00")
    assert [one["response"] for one in moved["attendees"]] == ["needs_action", "needs_action"]
    assert len(desk.ask("PATCH /events/{id}", "e-0025", remove_attendees=["anna"])["attendees"]) == 1
    assert desk.refused("PATCH /events/{id}", "e-0025")[0] == 400
    assert desk.refused("PATCH /events/{id}", "e-0007", title="Mine now")[0] == 403
    assert desk.ask("POST /events/{id}/cancel", "e-0025", note="They are ill.")["status"] == "cancelled"
    assert desk.refused("POST /events/{id}/cancel", "e-0025") == (409, "e-0025 is cancelled")
    answered = desk.ask("POST /events/{id}/respond", "e-0023", response="accepted", note="With pleasure")
    assert {"email": MAYA, "response": "accepted"} in answered["attendees"]
    assert desk.refused("POST /events/{id}/respond", "e-0026", response="accepted")[0] == 409
    desk.finish()


@at("documents")
def test_documents(desk: Desk) -> None:
    desk.ask("GET /me"), desk.ask("GET /people")
    listed = desk.ask("GET /documents")
    assert listed["total"] == 12 and "Salaries 2026" not in [one["title"] for one in listed["documents"]]
    assert desk.ask("GET /documents", owner="maya", classification="internal")["total"] == 4
    found = desk.ask("GET /search", q="torque wrench owner:maya")["documents"]
    assert [one["id"] for one in found] == ["d-0005"] and "torque wrench" in found[0]["snippet"]
    assert [one["id"] for one in desk.ask("GET /documents/{id}", "d-0003")["comments"]] == [
        "k-0001",
        "k-0002",
    ] and found
    assert desk.refused("GET /documents/{id}", "d-0013") == (404, "there is no document 'd-0013'")

    # writing
    made = desk.ask("POST /documents", title="Plan", body="## One\n\n- a\n- b\n\nText & **more**.")
    assert (made["id"], made["owner"], made["classification"], made["revision"]) == ("d-0015", MAYA, "internal", 1)
    edit, id = "POST /documents/{id}/edit", made["id"]
    assert "## Two" in desk.ask(edit, id, old="## One", new="## Two")["body"]
    assert desk.ask(edit, id, append="End.")["body"].endswith("more**.\nEnd.")
    assert desk.refused(edit, id, old="absent", new="x") == (409, "old: does not occur in d-0015")
    assert desk.refused(edit, id, old="e", new="x")[0] == 409
    assert desk.refused(edit, id, old="e", append="x")[0] == 400
    assert desk.refused(edit, "d-0001", append="x") == (403, "you are a reader of d-0001; this needs a writer")
    assert desk.ask(edit, id, old="- ", new="* ", all=True)["body"].count("* ") == 2
    assert desk.ask(edit, id, body="New.")["revision"] == 5
    assert desk.ask("PATCH /documents/{id}", id, classification="confidential", title="Plan B")["title"] == "Plan B"
    revisions = desk.ask("GET /documents/{id}/revisions", id)["revisions"]
    assert [one["summary"] for one in revisions][-2:] == ["rewritten", "title changed, classification changed"]
    assert desk.ask("GET /documents/{id}", id, revision=1)["body"].startswith("## One")
    restored = desk.ask("POST /documents/{id}/revisions/{revision}/restore", id, "1")
    assert (restored["revision"], restored["title"]) == (7, "Plan")
    assert desk.refused("GET /documents/{id}", id, revision=99)[0] == 404

    # people
    comment = desk.ask("POST /documents/{id}/comments", "d-0005", text="Yes", reply_to="k-0003", quote="26-02")
    assert (comment["id"], comment["author"]) == ("k-0005", MAYA)
    assert desk.refused("POST /documents/{id}/comments", "d-0005", text="?", quote="absent")[0] == 409
    assert desk.refused("POST /documents/{id}/comments", "d-0005", text="?", reply_to="k-0001")[0] == 404
    assert desk.refused("POST /documents/{id}/comments", "d-0002", text="?")[0] == 403
    assert desk.ask("POST /comments/{id}/resolve", "k-0003")["resolved"] is True
    shared = desk.ask("POST /documents/{id}/share", id, people=["dirk", "everyone", "maya"], role="reader")["shared"]
    assert shared == [{"email": DIRK, "role": "reader"}, {"email": "everyone@tidemark.example", "role": "reader"}]
    assert desk.ask("POST /documents/{id}/unshare", id, people=["dirk"])["shared"] == shared[1:]
    assert desk.refused("POST /documents/{id}/unshare", id, people=["dirk"])[0] == 404
    assert desk.ask("GET /documents/{id}/export", id)["content"].startswith("# Plan\n\n## One")
    assert (
        desk.ask("GET /documents/{id}/export", id, format="text")["content"] == "Plan\n\nOne\n\na\nb\n\nText & more.\n"
    )
    html = desk.ask("GET /documents/{id}/export", id, format="html")
    assert html["name"] == "plan.html"
    assert (
        html["content"] == "<h1>Plan</h1>\n<h2>One</h2>\n<ul><li>a</li><li>b</li></ul>\n<p>Text &amp; **more**.</p>\n"
    )
    assert desk.ask("DELETE /documents/{id}", id)["trashed"] is True
    assert desk.refused("DELETE /documents/{id}", "d-0006")[0] == 403
    assert [one["id"] for one in desk.ask("GET /documents", trashed=True)["documents"]] == [id]
    assert desk.refused(edit, id, append="x") == (409, "d-0015 is in the trash")
    desk.finish()


@at("files")
def test_files(desk: Desk) -> None:
    desk.ask("GET /me"), desk.ask("GET /people")
    top = desk.ask("GET /folders")
    assert [one["path"] for one in top["folders"]] == ["/Company", "/Finance", "/Marketing", "/Operations", "/Support"]
    assert [one["path"] for one in desk.ask("GET /folders", path="/Operations/claims/")["files"]] == [
        "/Operations/claims/claim-7741.txt",
        "/Operations/claims/pallet-7741.jpg",
    ]
    assert len(desk.ask("GET /folders", path="/Operations", recursive=True)["files"]) == 9
    assert desk.refused("GET /folders", path="/People") == (404, "there is no folder '/People'")
    found = desk.ask("GET /search", q="fuel 6.5")["files"]
    assert [one["id"] for one in found] == ["f-0003"] and "6.5 %" in found[0]["snippet"]
    assert desk.ask("GET /search", q="salaries")["total"] == 0
    assert desk.ask("GET /search", q="png")["files"][0]["snippet"] == ""
    assert desk.ask("GET /files", path="/Company/rooms.txt")["id"] == "f-0017"
    assert desk.ask("GET /files/{id}", "f-0017")["content"].startswith("Alder: first floor")
    assert desk.refused("GET /files/{id}", "f-0019") == (404, "there is no file 'f-0019'")

    # writing
    made = desk.ask("POST /files", path="/Operations/new/notes.md", content="a")
    assert (made["id"], made["media_type"], made["size"], made["owner"]) == ("f-0022", "text/markdown", 1, MAYA)
    assert desk.refused("POST /files", path="/Operations/new/notes.md", content="b")[0] == 409
    assert desk.refused("POST /files", path="/Company/x.txt", content="b") == (403, "you may not write in /Company")
    assert desk.refused("POST /files", path="/People/x.txt", content="b")[0] == 403
    assert desk.refused("POST /files", path="notes.md", content="b")[0] == 400
    assert desk.refused("POST /files", path="/a/../b", content="b")[0] == 400
    assert desk.refused("POST /files", path="/x.bin", content="***", encoding="base64") == (
        400,
        "content: is not base64",
    )
    id = made["id"]
    assert desk.ask("POST /files/{id}/append", id, content="b\n")["content"] == "a\nb\n"
    written = desk.ask("PUT /files/{id}", id, content="AAEC", encoding="base64")
    assert (written["size"], written["version"]) == (3, 3)
    assert desk.refused("POST /files/{id}/append", id, content="x")[0] == 409
    assert desk.refused("PUT /files/{id}", "f-0016", content="x") == (403, "you may only read f-0016")
    assert desk.ask("POST /files/{id}/move", id, path="/Mine/notes.bin")["path"] == "/Mine/notes.bin"
    assert desk.ask("POST /files/{id}/copy", "f-0016", path="/Mine/phones.csv")["owner"] == MAYA
    assert desk.refused("POST /files/{id}/move", id, path="/Mine/phones.csv")[0] == 409
    assert desk.ask("POST /folders", path="/Mine/empty/deep")["path"] == "/Mine/empty/deep"
    assert [one["path"] for one in desk.ask("GET /folders", path="/Mine")["folders"]] == ["/Mine/empty"]

    # trash
    assert desk.ask("DELETE /files/{id}", id)["trashed"] is True
    assert desk.refused("GET /files/{id}", id)[0] == 404
    assert [one["id"] for one in desk.ask("GET /trash")["files"]] == ["f-0022", "f-0021"]
    assert desk.ask("POST /files/{id}/restore", id)["trashed"] is False
    assert desk.refused("POST /files/{id}/restore", id)[0] == 409

    # sharing
    assert desk.ask("POST /files/{id}/share", id, people=["dirk"], role="reader")["shared"] == [
        {"email": DIRK, "role": "reader"}
    ]
    assert desk.ask("POST /files/{id}/unshare", id, people=["dirk"])["shared"] == []
    shared = desk.ask("POST /folders/share", path="/Mine", people=["sam", "anna"], role="writer")["shared"]
    assert [one["email"] for one in shared] == ["sam.whitlock@tidemark.example", ANNA]
    assert len(desk.ask("POST /folders/unshare", path="/Mine", people=["anna"])["shared"]) == 1
    assert desk.refused("POST /folders/share", path="/Company", people=["anna"], role="reader")[0] == 403
    desk.finish()
