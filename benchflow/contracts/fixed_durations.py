"""Durations of workflows and activities that no operator sets, each with its reason; `operator_options` has the others.

A duration is an option if a slower or larger cluster needs another value. These depend on neither.
"""

from __future__ import annotations

from datetime import timedelta

# --- workflows -------------------------------------------------------------------------------------------

SLICE_SEC = 300.0
"""Maximum length of a timer: an outage of the server or all workers, however long, costs the deadline no more."""

LATE_SEC = 1.0
"""Seconds by which a timer fires late from which on the delay counts as an outage, and not as work."""

MAX_TRY_WAIT_SEC = 60.0
"""Maximum number of seconds between two tries of a workflow to list, name, start or report rollouts."""

MAX_OUTAGE_WAIT_SEC = 900.0
"""Maximum number of seconds between two such tries once an outage has lasted longer than their `total_sec`: the
workflow's history has to hold the tries of an outage of weeks.
"""

ASK_AGAIN_SEC = 30.0
"""Seconds after which a rollout that waits for a slot first repeats its request: its job may have been terminated and
resubmitted. Each further repetition waits twice as long.
"""

MAX_ASK_AGAIN_SEC = 900.0
"""Maximum number of seconds between two such repetitions."""

WITHOUT_JOB_SEC = 600.0
"""Seconds that a rollout waits for slots while its job does not run, before it continues without the limit."""

GRANT_AGAIN_SEC = 1.0
"""Seconds between an unexpected error in the loop that grants slots and its next round."""

EARLIER_RUN_SEC = 2.0
"""Seconds between tries to start a child while its workflow of an earlier run of the tree has not ended."""

PREFLIGHT_SEC = 210.0
"""Seconds of one attempt of the preflight check: at most three requests to a model, each with a timeout of a minute."""

# --- activities ------------------------------------------------------------------------------------------

USER_CODE_SEC = 60.0
"""Timeout of one call of a user's policy or aggregate: half of `short_limit_sec`, which ends the activity."""

DESCRIBE_SEC = 10.0
"""Timeout of one request to the server for the state of a workflow whose activity has lost its attempt."""

NEXT_WORKER = timedelta(milliseconds=50)
"""Delay before the next attempt of an activity that did not fail itself: its worker ended, or the server lost contact.
"""

HANDOVER_SEC = 60.0
"""Timeout of handing over one activity of a worker process that has died, or those of one workflow."""

REAPED_ITEM_SEC = 300.0
"""Timeout of one provider, sandbox or other item in a round of the reaper, so that one that hangs does not hold up the
others.
"""

WATCHED_SEC = 600.0
"""Seconds for which an item must have seemed too old before the reaper removes it, since the wall clock may have been
set.
"""
