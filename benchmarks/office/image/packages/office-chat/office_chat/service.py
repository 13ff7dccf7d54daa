"""The chat service: its tables, the shapes of its answers, its operations, and how a world fills it."""

from __future__ import annotations

from office_core.arguments import PAGE, choice, flag, line, members, text, time
from office_core.service import (
    COUNT,
    FLAG,
    TEXT,
    TEXTS,
    TIME,
    WORD_OR_NULL,
    Operation,
    Service,
    list_of,
    listing,
    refer,
    shape,
)
from office_core.store import Store, remember_last

from office_chat import channels, messages
from office_chat.channels import KINDS

TYPE_CHECKING = False
if TYPE_CHECKING:
    from office_core.store import Row
    from office_core.worlds import World

TABLES = """
create table channels(id text primary key, kind text not null, topic text not null, members json not null,
                      archived boolean not null) without rowid;
create table messages(id text primary key, channel text not null references channels, author text not null,
                      text text not null, posted_at text not null, edited boolean not null,
                      thread text references messages, reactions json not null);
create index messages_by_channel on messages(channel);
create index messages_by_thread on messages(thread);
"""

KIND = {"type": "string", "enum": list(KINDS)}
SHAPES = {
    "Channel": shape(id=TEXT, kind=KIND, topic=TEXT, members=TEXTS, archived=FLAG),
    "Message": shape(
        id=TEXT,
        channel=TEXT,
        author=TEXT,
        text=TEXT,
        posted_at=TIME,
        edited=FLAG,
        thread=WORD_OR_NULL,
        replies=COUNT,
        reactions=list_of(shape(emoji=TEXT, people=TEXTS)),
    ),
}
CHANNEL, MESSAGE = refer("Channel"), refer("Message")
IN_CHANNEL = {"channel": line("Its id, which is its name: general.", required=True)}
ID = {"id": line("Of a message: msg-0007.", required=True)}
WORDS = {"text": text("Markdown; @handle names somebody.", required=True)}
EMOJI = {"emoji": line("Its name: white_check_mark.", required=True)}

OPERATIONS = (
    Operation(
        "list_channels",
        "GET /channels",
        channels.list_channels,
        "The channels and direct messages that I may see.",
        {"kind": choice(KINDS), "member": flag("true: only where I am a member."), **PAGE},
        result=listing("channels", "Channel"),
    ),
    Operation(
        "read_channel", "GET /channels/{channel}", channels.read_channel, "A channel.", IN_CHANNEL, result=CHANNEL
    ),
    Operation(
        "list_channel_messages",
        "GET /channels/{channel}/messages",
        messages.list_channel_messages,
        "The newest messages of a channel, oldest first; answers are in threads.",
        {**IN_CHANNEL, "after": time("From this time on."), "before": time("Up to this time."), **PAGE},
        result=listing("messages", "Message"),
    ),
    Operation("read_message", "GET /messages/{id}", messages.read_message, "A message.", ID, result=MESSAGE),
    Operation(
        "read_message_thread",
        "GET /messages/{id}/thread",
        messages.read_message_thread,
        "The thread that a message is in.",
        ID,
        result=shape(message=MESSAGE, replies=list_of(MESSAGE)),
    ),
    Operation(
        "search_chat",
        "GET /search",
        messages.search_chat,
        "Search all that I may see, newest first.",
        {
            "q": line(
                'Words and "phrases"; also from:HANDLE in:CHANNEL before:2026-03-01 after:2026-03-01', required=True
            ),
            **PAGE,
        },
        result=listing("messages", "Message"),
    ),
    Operation(
        "post_message",
        "POST /channels/{channel}/messages",
        messages.post_message,
        "Write in a channel.",
        {**IN_CHANNEL, **WORDS},
        result=MESSAGE,
        status=201,
    ),
    Operation(
        "reply_to_message",
        "POST /messages/{id}/replies",
        messages.reply_to_message,
        "Answer in the thread of a message.",
        {**ID, **WORDS},
        result=MESSAGE,
        status=201,
    ),
    Operation(
        "edit_message",
        "PATCH /messages/{id}",
        messages.edit_message,
        "Change my message.",
        {**ID, **WORDS},
        result=MESSAGE,
    ),
    Operation(
        "delete_message",
        "DELETE /messages/{id}",
        messages.delete_message,
        "Delete my message and its answers.",
        ID,
        result=MESSAGE,
    ),
    Operation(
        "add_reaction",
        "POST /messages/{id}/reactions",
        messages.add_reaction,
        "React to a message.",
        {**ID, **EMOJI},
        result=MESSAGE,
    ),
    Operation(
        "remove_reaction",
        "DELETE /messages/{id}/reactions/{emoji}",
        messages.remove_reaction,
        "Take my reaction back.",
        {**ID, **EMOJI},
        result=MESSAGE,
    ),
    Operation(
        "send_direct_message",
        "POST /direct-messages",
        messages.send_direct_message,
        "Write to one person or to several, without a channel.",
        {"to": members("Handles or addresses.", required=True), **WORDS},
        result=MESSAGE,
        status=201,
    ),
    Operation(
        "create_channel",
        "POST /channels",
        channels.create_channel,
        "Make a channel; I am in it.",
        {
            "name": line("Small letters, digits, hyphens.", required=True),
            "kind": choice(("public", "private")),
            "topic": line(),
            "members": members("Who else is in it."),
        },
        result=CHANNEL,
        status=201,
    ),
    Operation(
        "set_topic",
        "PATCH /channels/{channel}",
        channels.set_topic,
        "Change a channel's topic.",
        {**IN_CHANNEL, "topic": line(required=True)},
        result=CHANNEL,
    ),
    Operation(
        "invite_to_channel",
        "POST /channels/{channel}/members",
        channels.invite_to_channel,
        "Bring people into a channel that I am in.",
        {**IN_CHANNEL, "people": members(required=True)},
        result=CHANNEL,
    ),
    Operation(
        "join_channel",
        "POST /channels/{channel}/join",
        channels.join_channel,
        "Become a member of a public channel.",
        IN_CHANNEL,
        result=CHANNEL,
    ),
    Operation(
        "leave_channel",
        "POST /channels/{channel}/leave",
        channels.leave_channel,
        "Leave a channel.",
        IN_CHANNEL,
        result=CHANNEL,
    ),
)


def seed(world: World, store: Store) -> None:
    for item in world.items("channels"):
        kind = item.choice("kind", KINDS, "public")
        group: Row = {"id": item.text("id"), "kind": kind, "topic": item.text("topic", "")}
        people = [item.member(one) for one in item.texts("members")]
        store.insert("channels", {**group, "members": people, "archived": item.flag("archived", False)})
        item.done()
    for item in world.items("chat"):
        author, thread = item.member(item.text("author")), item.text("thread", "") or None
        channel = store.get("channels", item.text("channel"))
        if channel is None or author not in channel["members"]:
            raise item.problem(f"channel {item.text('channel')!r} is not there, or {author} is not in it")
        if thread is not None and not world.has("chat", thread):
            raise item.problem(f"thread is {thread!r}, which is not there")
        row: Row = {"id": item.text("id"), "channel": channel["id"], "author": author, "text": item.text("text")}
        reactions = [
            {"emoji": one["emoji"], "people": [item.member(handle) for handle in one["people"]]}
            for one in item.value("reactions", [])
        ]
        row.update(posted_at=item.time("posted_at"), edited=item.flag("edited", False), thread=thread)
        store.insert("messages", {**row, "reactions": reactions})
        item.done()
    remember_last(store, "messages", "msg-")


SERVICE = Service(
    "chat",
    9102,
    "the company's chat: channels, threads, reactions, direct messages.",
    tables=TABLES,
    shapes=SHAPES,
    operations=OPERATIONS,
    seed=seed,
)
