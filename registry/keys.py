"""The names of all keys of groups, hosts and mailboxes.

All keys of one shared subscription carry the same hash tag, so that Redis Cluster keeps them in one slot and
a script may touch them together::

    sl:{g:GROUP/FILTER}:def        string  JSON declaration
    sl:{g:GROUP/FILTER}:leader     hash    term, host, mailbox, renewed_at (ms), ttl (ms), lineage of the data
                                           in which the term was issued; declared: lineage in which the
                                           group was declared; pulse: tag of the pulses of its host,
                                           where they renew it; heir, heir_until (ms): who alone may
                                           claim it until then
    sl:{g:GROUP/FILTER}:journal    stream  fields r: JSON array of records, t: term, n: number in it
    sl:{g:GROUP/FILTER}:snapshot   hash    id, t, n (of the last journal entry in it), state (JSON)
    sl:{g:GROUP/FILTER}:arrivals   string  counter of sessions
    sl:{g:GROUP/FILTER}:leases     hash    stream -> lease epoch under which it may be committed; and
                                           @durable: how durably (`registry/commits.py`)
    sl:{g:GROUP/FILTER}:progress   hash    stream -> committed; and @active: last
                                           commit or connect (ms), @expired: since when it holds no
                                           data (ms), @paused: since when an operator has paused it
                                           (ms), @passed: how often retention passed it, @joined: a
                                           number that every declaration makes higher
    sl:{g:GROUP/FILTER}:replayed   hash    STREAM@OFFSET of a dead letter -> JSON: when, by whom, where to
    sl:{g:GROUP/FILTER}:readers    hash    run of a Spark query -> when (s), who reads for it: a day
    sl:{g:GROUP/FILTER}:late       hash    session whose query's checkpoint is behind its progress -> when
                                           (s) that was noted: 30 days
    sl:{g:GROUP/FILTER}:told       hash    session, stream and offset from which retention passed its query,
                                           which failed of it and need not again -> when (s): 30 days
    sl:{g:GROUP/FILTER}:news       channel published when its leader or its leases may have changed
    sl:{g:GROUP/FILTER}:member:ID  hash    a member that speaks HTTP: arrival, gateway and address (of who
                                           serves it; empty: nobody), session, name, timeout (ms), start;
                                           handed:STREAM: lease epoch and end of what was handed out; lasts
                                           for `timeout`
    sl:{w:GATEWAY}:alive           string  a gateway lives; lasts for seconds (`registry/members`)
    sl:{groups}:ids                set     every declared $shared/GROUP/FILTER or $queue/GROUP/FILTER
    sl:{groups}:news               channel published when a group is declared or deleted
    sl:{spaces}:passed             hash    groups: how often retention passed any, a sign to look at @passed.
                                           It stands beside the definitions of spaces, which are looked at
                                           together with it
    sl:{hosts}:alive               zset    host id -> time of its last sign of life (ms of the Redis clock)
    sl:{hosts}:info                hash    host id -> JSON
    sl:{p:TAG}:pulses              hash    host id -> when it last renewed all that it leads on a server
                                           (`registry/pulses.py`)
    sl:{x:NAME}:secret             string  a secret that processes share (`registry/shared_secrets.py`)
    sl:{w:SLOT}:subscriptions      hash    webhooks of a slot, and :standings, :fence (`registry/webhooks`)
    sl:{m:OWNER}:in                stream  mailbox; field f: sender's mailbox, m: JSON array of messages

The queue of spawn jobs is kept by RQ, under names of its own, and read and written by leader hosts only::

    rq:queue:streamlease-leaders   list    jobs that no host took yet
    rq:failed:streamlease-leaders  zset    jobs that failed or were refused
    rq:job:streamlease-leader-*    hash    a job
"""

from __future__ import annotations

GROUPS = "sl:{groups}:ids"
PASSED = "sl:{spaces}:passed"
GROUPS_NEWS = "sl:{groups}:news"
HOSTS_ALIVE = "sl:{hosts}:alive"
HOSTS_INFO = "sl:{hosts}:info"

QUEUE = "streamlease-leaders"
"""Name of the RQ queue of spawn jobs."""

WAITING_JOBS = f"rq:queue:{QUEUE}"
FAILED_JOBS = f"rq:failed:{QUEUE}"

CLAIM = "!"
"""What the names of claims begin with, and no group's name: a claim has the `leader` key of a group
(`hosts/claim.py`)."""

RETENTION = f"{CLAIM}retention"
COMPACTION = f"{CLAIM}compaction"
SNAPSHOTS = f"{CLAIM}snapshots"
ARCHIVES = f"{CLAIM}archive"
CHORES = (RETENTION, COMPACTION, SNAPSHOTS, ARCHIVES)
"""The claims to what one host does for all (`hosts/chores.py`)."""

KEEPER = f"{CLAIM}epochs-"
"""What the claim of a keeper begins with, before the name of its space."""

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


def readers(group: str) -> str:
    """Key of the sessions that read for runs of Spark queries."""
    return _group(group, "readers")


def late(group: str) -> str:
    """Key of the sessions whose queries' checkpoints are behind their progress."""
    return _group(group, "late")


def told(group: str) -> str:
    """Key of the losses of which queries have failed already."""
    return _group(group, "told")


def arrivals(group: str) -> str:
    """Key of the counter of sessions."""
    return _group(group, "arrivals")


def leases(group: str) -> str:
    """Key of who may commit which stream (`registry/commits.py`)."""
    return _group(group, "leases")


def progress(group: str) -> str:
    """Key of the group's progress (`registry/group_needs.py`)."""
    return _group(group, "progress")


def news(group: str) -> str:
    """Channel where something is published when the leader or a lease of the group may have changed."""
    return _group(group, "news")


def replayed(group: str) -> str:
    """Key of the dead letters that were replayed."""
    return _group(group, "replayed")


def group_member(group: str, member: str) -> str:
    """Key of a member that speaks to gateways (`registry/members`)."""
    return _group(group, f"member:{member}")


def channel(channel: str) -> str:
    """Key of where the channel of a client is (`registry/members/channel_homes.py`)."""
    return f"sl:{{w:{channel}}}:channel"


def gateway(gateway: str) -> str:
    """Key of the sign of life of a gateway."""
    return f"sl:{{w:{gateway}}}:alive"


def pulses(tag: str) -> str:
    """Key of the pulses with this tag."""
    return f"sl:{{p:{tag}}}:pulses"


def mailbox(owner: str) -> str:
    """Key of the mailbox of the process `owner`."""
    return f"sl:{{m:{owner}}}:in"


def shared_secret(name: str) -> str:
    """A secret that processes share."""
    return f"sl:{{x:{name}}}:secret"
