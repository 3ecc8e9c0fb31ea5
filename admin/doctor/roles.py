"""What each kind of process may do in Redis: the one table from which docs, `doctor` and tests are made.

============ ================================================================================
role         who
============ ================================================================================
``client``   publishes, consumes, runs Spark queries, and leads groups where no host runs
``host``     ``streamlease serve``: what a client does, and the queue of spawn jobs
``executor`` ``streamlease executor``: what a client does, for its programs, and the queues of executors
``observer`` looks: every view, the page, ``doctor``; writes nothing
``admin``    an operator: what a client does, what an observer sees, and submits to the queues of executors
============ ================================================================================

Each command is listed by name: a category such as ``@write`` grows with every version of Redis, and includes
FLUSHALL, SWAPDB, MIGRATE and FUNCTION FLUSH today. Nobody gets CONFIG GET, which reveals the passwords of the
server. Scripts run with the rights of their caller, so EVALSHA allows nothing that is not allowed without it.

Nothing separates clients from operators within Streamlease's own data: any client may come to lead any group,
and a leader writes journals, floors and definitions. A role keeps its users away from everything else: the
server, the keys of other programs, and the queue from which hosts take jobs. Whoever writes a queue of
executors has nothing run by that: what is in it must be signed (`streamlease.queries`).

Keys in ``reads`` are written ``%R~``, which Redis knows since version 7; for older servers they are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

from streamlease.registry.keys import FAILED_JOBS, QUEUE, WAITING_JOBS
from streamlease.registry.spawn_jobs import EXECUTOR_QUEUES, LEADERS, SpawnWorkers

OURS = "sl:*"


@dataclass(frozen=True, slots=True)
class Role:
    """A user of Redis; commands in lower case, subcommands behind a ``|``."""

    name: str
    who: str
    commands: frozenset[str]
    keys: tuple[str, ...]
    """Patterns of keys that it reads and writes, as far as its commands do."""
    reads: tuple[str, ...] = ()
    """Patterns of keys that it only reads."""

    def rules(self) -> list[str]:
        """The rules for ``ACL SETUSER``, all but the password."""
        return [
            "reset",
            "on",
            *(f"~{key}" for key in self.keys),
            *(f"%R~{key}" for key in self.reads),
            f"&{OURS}",
            "-@all",
            *(f"+{command}" for command in sorted(self.commands)),
        ]

    def line(self) -> str:
        """The whole command, with ``PASSWORD`` where the password belongs."""
        first, on, *rest = self.rules()
        return " ".join(["ACL SETUSER", self.name, first, on, ">PASSWORD", *rest])


NEWER = {"waitaof": "Redis 7.2"}
"""Commands that older servers do not know, and from when on they are known."""

_CONNECTION = frozenset({"ping", "select", "info", "time", "command|info", "cluster|slots", "asking"})
_LOOK = frozenset(
    {
        "exists", "get", "hget", "hgetall", "hkeys", "hlen", "hmget", "sismember", "smembers",
        "type", "xinfo|consumers", "xinfo|groups", "xinfo|stream", "xlen", "xpending", "xrange",
        "xread", "xrevrange", "zcard",
        "zrangebylex", "zrangebyscore", "zscore", "evalsha", "script|load", "subscribe", "unsubscribe",
    }
)  # fmt: skip
_WRITE = frozenset(
    {
        "del", "expire", "hdel", "hincrby", "hset", "incr", "incrby", "persist", "pexpire", "publish", "sadd",
        "set", "srem", "unlink", "wait", "waitaof", "xadd", "xdel", "xtrim", "zadd",
        "zlexcount", "zrem",
    }
)  # fmt: skip
_SURVEY = frozenset({"scan", "llen"})
_QUEUE = frozenset(
    {"blmove", "exec", "hexists", "llen", "lrange", "lrem", "multi", "rpush", "zremrangebyscore"}
)

_PUT = frozenset({"exec", "multi", "rpush"})

_CLIENT = _CONNECTION | _LOOK | _WRITE
_ORDERS = (f"rq:queue:{EXECUTOR_QUEUES}*", f"rq:job:{SpawnWorkers.id_prefix}*", "rq:queues")

CLIENT = Role("client", "publishers, consumers, Spark queries", _CLIENT, (OURS,))
HOST = Role(
    "host",
    "`streamlease serve`",
    _CLIENT | _QUEUE,
    (
        OURS,
        f"{WAITING_JOBS}*",
        *(f"rq:job:{kind.id_prefix}*" for kind in LEADERS.kinds.values()),
        FAILED_JOBS,
        "rq:queues",
        "rq:workers",
        f"rq:workers:{QUEUE}",
        "rq:worker:streamlease-*",
    ),
)
EXECUTOR = Role(
    "executor",
    "`streamlease executor`, and its programs unless they have a user of their own",
    _CLIENT | _QUEUE,
    (
        OURS,
        *_ORDERS,
        f"rq:failed:{EXECUTOR_QUEUES}*",
        "rq:workers",
        f"rq:workers:{EXECUTOR_QUEUES}*",
        f"rq:worker:{EXECUTOR_QUEUES}*",
    ),
)
OBSERVER = Role(
    "observer",
    "views, `streamlease ui` without a token, `doctor`",
    _CONNECTION | _LOOK | _SURVEY,
    (OURS,),
    (WAITING_JOBS, FAILED_JOBS),
)
ADMIN = Role(
    "admin",
    "operators: every command, `streamlease ui` with a token",
    _CLIENT | _SURVEY | _PUT,
    (OURS, *_ORDERS),
    (WAITING_JOBS, FAILED_JOBS),
)
ROLES = {role.name: role for role in (CLIENT, HOST, EXECUTOR, OBSERVER, ADMIN)}
