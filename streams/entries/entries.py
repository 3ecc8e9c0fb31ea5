"""Everything that other rooms need from this one; ``layout`` says what an entry looks like. Pure."""

from __future__ import annotations

from streamlease.streams.entries.decoding import Entry, decode_entries, decode_entry, reopened, topics_in
from streamlease.streams.entries.delivered import Message, to_messages
from streamlease.streams.entries.encoding import (
    encode_batch,
    encode_columns,
    encode_message,
    encode_normalized,
    encode_rows,
    encode_typed_rows,
    raised,
)
from streamlease.streams.entries.layout import CODECS, Codec, Encoded, Fields
from streamlease.streams.entries.message_rows import (
    EPOCH,
    HEADERS,
    MAX_MESSAGE_BYTES,
    MESSAGE_SCHEMA,
    TIMESTAMP,
    Headers,
    HeadersInput,
    Row,
    as_bytes,
    check_payload,
    filter_batch,
    normalized,
    pack_headers,
)

__all__ = [
    "CODECS",
    "EPOCH",
    "HEADERS",
    "MAX_MESSAGE_BYTES",
    "MESSAGE_SCHEMA",
    "TIMESTAMP",
    "Codec",
    "Encoded",
    "Entry",
    "Fields",
    "Headers",
    "HeadersInput",
    "Message",
    "Row",
    "as_bytes",
    "check_payload",
    "decode_entries",
    "decode_entry",
    "encode_batch",
    "encode_columns",
    "encode_message",
    "encode_normalized",
    "encode_rows",
    "encode_typed_rows",
    "filter_batch",
    "normalized",
    "pack_headers",
    "raised",
    "reopened",
    "to_messages",
    "topics_in",
]
