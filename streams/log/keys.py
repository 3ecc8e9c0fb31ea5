"""Names of the keys in Redis. What belongs to one stream, or to all definitions, shares one hash tag,
so that a script finds all its keys in one slot of a Redis Cluster.

========================= ======= =================================================================
key                       type    what
========================= ======= =================================================================
``sl:{flights.0.3}:log``  stream  the entries; an id is ``<last offset>-<count>``
``...:merged``            stream  entries that were merged, in the same form; all of them lie below the log
``sl:{flights.0.3}:meta`` hash    next, state (pending, open, sealed), floor, last_append (us), bytes;
                                  merged: where the log begins, if entries below it were merged;
                                  of an archive (``archived``): exists (see ``state``), archived: what is
                                  below it is in files, archive_term, retired_at (us)
                                  of retention: trimmed_at, trim_term, held_by, held_since;
                                  ends: GENERATION.SHARD:END of dropped streams that it follows
``sl:{flights.0.3}:pubs`` hash    publisher id -> ``incarnation sequence first count append_us``; of a
                                  sink with two words more: tag of the decision, rows of the batch
``sl:{flights.0.3}:news`` channel each append publishes the new ``next`` here
``...:files``             zset    the files of the stream's archive, by the offset behind each
``...:staged:TOKEN``      stream  entries of a sink's task that belong to no batch yet; expires
``...:snapshot``          hash    of a collection: number, upto, token, messages, entries, lost of the
                                  newest snapshot (``streams/collections``)
``...:snapshot:TOKEN``    stream  its entries; what was not finished, or followed by another, expires
``sl:{archive:SPACE}:...``        table, a hash: metadata, the newest of the table of an archive in a
                                  bucket without a catalog, and before; taken, a string: see
                                  ``streams/archive/recording``; expires
``sl:{sink:NAME}:state``  hash    newest batch of a sink and what it consists of: batch, version, plan
``sl:{sink:NAME}:staged`` set     ``BATCH STREAM TOKEN`` of all that is staged for a sink; expires
``sl:{o:HASH}:once``      hash    of a request with a key of the client's own: owner, until (ms), print,
                                  answer (``streams/publish/kept_answers``); expires after an hour
``sl:{spaces}:defs``      hash    space -> its definition as JSON
``sl:{spaces}:gens``      hash    space -> highest generation ever used; outlives the space
``sl:{spaces}:version``   string  goes up with every change of a definition
========================= ======= =================================================================
"""

from __future__ import annotations

from functools import lru_cache

from streamlease.protocol.ids import StreamId

SPACE_DEFINITIONS = "sl:{spaces}:defs"
SPACE_GENERATIONS = "sl:{spaces}:gens"
SPACE_VERSION = "sl:{spaces}:version"
SPACE_NEWS = "sl:{spaces}:news"
"""The channel on which the name of a space is published whose definition was written or removed."""


def stream_log(stream: StreamId) -> str:
    """The Redis stream with the entries."""
    return f"sl:{{{stream}}}:log"


def stream_merged(stream: StreamId) -> str:
    """The Redis stream with the entries that were merged."""
    return f"sl:{{{stream}}}:merged"


def stream_files(stream: StreamId) -> str:
    """The sorted set with the files of the archive."""
    return f"sl:{{{stream}}}:files"


def archive_table(space: str) -> str:
    """The hash that says where the metadata of the table of an archive in a bucket lies."""
    return f"sl:{{archive:{space}}}:table"


def archives_left() -> str:
    """The hash with the archives of deleted spaces that are to be removed, and may not be gone yet."""
    return "sl:archives:left"


def archive_turn(space: str) -> str:
    """The hash that says whose turn it is to work at the archive of a space."""
    return f"sl:{{archive:{space}}}:turn"


def stream_meta(stream: StreamId) -> str:
    """The hash with next offset, state and floor."""
    return f"sl:{{{stream}}}:meta"


def stream_publishers(stream: StreamId) -> str:
    """The hash with the last append of each publisher."""
    return f"sl:{{{stream}}}:pubs"


def stream_news(stream: StreamId) -> str:
    """The channel on which each append is announced."""
    return f"sl:{{{stream}}}:news"


@lru_cache(maxsize=32_768)
def append_keys(stream: StreamId) -> tuple[str, str, str]:
    """The keys that an append needs: meta, publishers, log."""
    return stream_meta(stream), stream_publishers(stream), stream_log(stream)


def stream_staged(stream: StreamId, token: str) -> str:
    """The plain Redis stream with entries that are staged for `stream`."""
    return f"sl:{{{stream}}}:staged:{token}"


STAGED = ("meta", "pubs", "log", "epochs")
"""What the staged log of a stream consists of, in a space with epochs; see ``streams/epochs/keys.py``."""

OF_EPOCHS = ("state", "lines", "writers", "ends", "base", "bounds")
"""What stands of the epochs of a space as a whole."""


def staged_part(stream: StreamId, part: str) -> str:
    """One of `STAGED`."""
    return f"sl:{{{stream}}}:open:{part}"


def epochs_part(space: str, part: str) -> str:
    """One of `OF_EPOCHS`."""
    return f"sl:{{epochs:{space}}}:{part}"


def snapshot_state(stream: StreamId) -> str:
    """The hash with the newest snapshot of a stream of a collection."""
    return f"sl:{{{stream}}}:snapshot"


def snapshot_entries(stream: StreamId, token: str) -> str:
    """The plain Redis stream with the entries of a snapshot."""
    return f"sl:{{{stream}}}:snapshot:{token}"


def sink_state(sink: str) -> str:
    """The hash with the newest batch of a sink and what it consists of."""
    return f"sl:{{sink:{sink}}}:state"


def sink_staged(sink: str) -> str:
    """The set of all that is staged for a sink."""
    return f"sl:{{sink:{sink}}}:staged"


def source_state(source: str) -> str:
    """The hash with what is remembered of a source that is published or imported resumably."""
    return f"sl:{{source:{source}}}:state"


def installation_id() -> str:
    """The text by which other systems know what is in this Redis."""
    return "sl:{installation}:id"


def space_inbox(space: str) -> str:
    """The plain Redis stream to which any client may XADD messages for a space."""
    return f"sl:{{inbox:{space}}}"


def inbox_refused(space: str) -> str:
    """The plain Redis stream with the entries of the inbox that cannot be messages."""
    return f"sl:{{inbox:{space}}}:refused"


def inbox_mover(space: str) -> str:
    """Key of the claim of the process that moves the entries of the inbox now."""
    return f"sl:{{inbox:{space}}}:mover"
