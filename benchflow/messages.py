"""Encoding of messages to the Temporal server: pydantic models as JSON, large payloads as references to the store.

A history may have 50 MiB and one response of a workflow 4 MiB, whereas a rollout's steps, prompts and trees have no
such limit. So the codec of every client and worker puts a large payload into the artifact store and sends its
reference.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.contrib.pydantic import PydanticPayloadConverter
from temporalio.converter import DataConverter, PayloadCodec

from benchflow.contracts.base import MAX_INLINE_BYTES, MAX_MESSAGE_BYTES, ArtifactRef
from benchflow.contracts.failures import typed_error
from benchflow.errors import BenchFlowError, StackError
from benchflow.store import BULK, Store

_ENCODING = b"json/benchflow-artifact"


class GuardedConverter(PydanticPayloadConverter):
    """Converter of pydantic models to JSON that refuses messages beyond `MAX_MESSAGE_BYTES`."""

    def to_payloads(self, values: Sequence[Any]) -> list[Payload]:
        """Return the payloads of a message. Raise `StackError` if they are too large together."""
        payloads = super().to_payloads(values)
        size = sum(len(payload.data) for payload in payloads)
        if size > MAX_MESSAGE_BYTES:
            kinds = ", ".join(type(value).__name__ for value in values)
            raise StackError(
                f"a message of {size} bytes ({kinds}) is larger than {MAX_MESSAGE_BYTES}",
                remedy="put bulk into the artifact store and send its reference",
            )
        return payloads


class BulkCodec(PayloadCodec):
    """Codec that sends payloads of more than `MAX_INLINE_BYTES` as references to the artifact store.

    An error of the store fails the task in which a message is encoded or decoded; the server retries that task.
    """

    @functools.cached_property
    def _store(self) -> Store:
        """Return the store of this process's environment, opened for the first large payload."""
        return Store.open().below(BULK)

    async def encode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Return the payloads with large ones replaced by references.

        Raises:
            BenchFlowError: The store does not accept one. Its type begins the message, too.
        """
        try:
            return [await self._put(each) if len(each.data) > MAX_INLINE_BYTES else each for each in payloads]
        except Exception as error:
            known = typed_error(error)
            if not isinstance(known, BenchFlowError):
                raise
            # If a workflow's commands were encoded, the failure of its task has only this text, and no type.
            raise type(known)(f"{type(known).__name__}: {known}") from error

    async def decode(self, payloads: Sequence[Payload]) -> list[Payload]:
        """Return the payloads with references replaced by the stored payloads."""
        return [await self._get(each) if each.metadata.get("encoding") == _ENCODING else each for each in payloads]

    async def _put(self, payload: Payload) -> Payload:
        ref = await self._store.put_bytes(payload.SerializeToString())
        return Payload(metadata={"encoding": _ENCODING}, data=ref.model_dump_json().encode())

    async def _get(self, payload: Payload) -> Payload:
        ref = ArtifactRef.model_validate_json(payload.data)
        return Payload.FromString(await self._store.read(ref))


def make_converter() -> DataConverter:
    """Return the data converter of a client; its store is the one that the environment names."""
    return DataConverter(payload_converter_class=GuardedConverter, payload_codec=BulkCodec())
