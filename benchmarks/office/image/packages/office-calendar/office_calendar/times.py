"""Time in calendars: zones, what overlaps, and when everybody is free."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from datetime import time as time_of_day

from office_core.errors import Invalid

TYPE_CHECKING = False  # zones are loaded when they are needed
if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

STEP = timedelta(minutes=30)
SATURDAY = 5


def zone(name: str) -> ZoneInfo:
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name)
    except (OSError, ValueError, LookupError):
        raise Invalid(f"timezone: there is no zone {name!r}; zones are named as Europe/Amsterdam") from None


def placed(time: datetime, where: ZoneInfo) -> datetime:
    """The time in a zone: moved there, or, without a zone of its own, meant there."""
    return time.astimezone(where) if time.tzinfo else time.replace(tzinfo=where)


def written(time: datetime) -> str:
    return time.isoformat(timespec="seconds")


def in_order(start: datetime, end: datetime) -> None:
    if end <= start:
        raise Invalid(f"end: {written(end)} is not after the start, {written(start)}")


def clock(name: str, text: str) -> time_of_day:
    try:
        return time_of_day.fromisoformat(text)
    except ValueError:
        raise Invalid(f"{name}: must be a time of day such as 09:00, not {text!r}") from None


def merged(spans: Sequence[tuple[datetime, datetime]]) -> list[tuple[datetime, datetime]]:
    """Spans in order, those that touch each other as one."""
    found: list[tuple[datetime, datetime]] = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found


def free_slots(
    busy: Sequence[tuple[datetime, datetime]],
    start: datetime,
    end: datetime,
    length: timedelta,
    opens: time_of_day,
    closes: time_of_day,
) -> Iterator[tuple[datetime, datetime]]:
    """Every half hour at which `length` fits on a weekday between two times of day, without touching what is busy."""
    where = start.tzinfo
    day = start.date()
    while day <= end.date():
        last = datetime.combine(day, closes, where)
        slot = datetime.combine(day, opens, where)
        while day.weekday() < SATURDAY and slot + length <= last:
            if slot >= start and slot + length <= end and not any(a < slot + length and slot < b for a, b in busy):
                yield slot, slot + length
            slot += STEP
        day += timedelta(days=1)
