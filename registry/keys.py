"""Names of all keys of groups, hosts and mailboxes.

All keys of one shared subscription carry the same hash tag, so that Redis Cluster keeps them in one slot and
a script may touch them together::

    sl:{g:GROUP/FILTER}:def        string  JSON declaration
    sl:{g:GROUP/FILTER}:leader     hash    term, host, mailbox, renewed_at (ms), ttl (ms)
    sl:{g:GROUP/FILTER}:journal    stream  fields r: JSON array of records, t: term, n: number in it
    sl:{g:GROUP/FILTER}:snapshot   hash    id, t, n (of the last journal entry in it), state (JSON)
    sl:{g:GROUP/FILTER}:arrivals   string  counter of sessions
    sl:{g:GROUP/FILTER}:progress   hash    stream -> committed, a mirror of the journal; and @active: last
                                           commit or connect (ms), @expired: since when it holds no
                                           data (ms), @paused: since when an operator has paused it
                                           (ms), @passed: how often retention passed it, @joined: a
                                           number that every declaration makes higher
    sl:{g:GROUP/FILTER}:replayed   hash    STREAM@OFFSET of a dead letter -> JSON: when, by whom, where to
    sl:{groups}:ids                set     every declared $shared/GROUP/FILTER or $queue/GROUP/FILTER
    sl:{hosts}:alive               zset    host id -> time of its last sign of life (ms of the Redis clock)
    sl:{hosts}:info                hash    host id -> JSON
    sl:{m:OWNER}:in                stream  mailbox; field f: sender's mailbox, m: JSON array of messages
"""

from __future__ import annotations

GROUPS = "sl:{groups}:ids"
HOSTS_ALIVE = "sl:{hosts}:alive"
HOSTS_INFO = "sl:{hosts}:info"

_ESCAPES = str.maketrans({"%": "%25", "{": "%7B", "}": "%7D"})


def _group(group: str, part: str) -> str:
    return f"sl:{{g:{group.translate(_ESCAPES)}}}:{part}"


def definition(group: str) -> str:
    """Key of the declaration of the group with identity `group` (``GROUP/FILTER``)."""
    return _group(group, "def")


def leader(group: str) -> str:
    """Key of the leadership record."""
    return _group(group, "leader")


def journal(group: str) -> str:
    """Key of the journal."""
    return _group(group, "journal")


def snapshot(group: str) -> str:
    """Key of the newest snapshot."""
    return _group(group, "snapshot")


def arrivals(group: str) -> str:
    """Key of the counter of sessions."""
    return _group(group, "arrivals")


def progress(group: str) -> str:
    """Key of the mirror of the group's progress (`registry/progress.py`)."""
    return _group(group, "progress")


def replayed(group: str) -> str:
    """Key of the dead letters that were replayed."""
    return _group(group, "replayed")


def mailbox(owner: str) -> str:
    """Key of the mailbox of the process `owner`."""
    return f"sl:{{m:{owner}}}:in"
