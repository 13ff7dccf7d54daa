"""What travels between workflows and activities, by size."""

from __future__ import annotations

import pytest

from benchflow.contracts.activities import OpenRollouts
from benchflow.errors import PayloadTooLargeError
from benchflow.temporal import CONVERTER, MAX_MESSAGE_BYTES


def test_a_message_that_no_server_takes_is_refused_before_it_is_sent() -> None:
    CONVERTER.payload_converter.to_payloads([OpenRollouts(ids=["x" * 1000])])
    with pytest.raises(PayloadTooLargeError, match="OpenRollouts") as caught:
        CONVERTER.payload_converter.to_payloads([OpenRollouts(ids=["x" * MAX_MESSAGE_BYTES])])
    assert "store" in str(caught.value.remedy)
