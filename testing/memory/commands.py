"""The commands that a server knows, but for those of connections: as Redis 7 does them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from redis.exceptions import ResponseError

from streamlease.testing.memory import stream_commands as streams
from streamlease.testing.memory.keyspace import Hash, Keyspace, Set, Sorted, Stream

Args = Sequence[bytes]
_INTEGER = re.compile(rb"0|-?[1-9][0-9]*")
NO_INTEGER = "ERR value is not an integer or out of range"


class Status(bytes):
    """A reply that is a status, not a string: a script sees the difference."""


OK = Status(b"OK")


class Kind(NamedTuple):
    """What is known of a command."""

    act: Callable[[Keyspace, Args], Any]
    writes: bool
    least: int
    """So many arguments it has at least."""


def _integer(text: bytes | None, error: str = NO_INTEGER) -> int:
    if text is None:
        return 0
    if not _INTEGER.fullmatch(text) or not -(2**63) <= int(text) < 2**63:
        raise ResponseError(error)
    return int(text)


# ------------------------------------------------------------ keys and strings


def _get(keys: Keyspace, args: Args) -> Any:
    return keys.text(args[0])


def _set(keys: Keyspace, args: Args) -> Any:
    key, value, *options = args
    names = [option.upper() for option in options]
    there = keys.get(key) is not None
    if (b"NX" in names and there) or (b"XX" in names and not there):
        return None
    lifetime = None
    for name, unit in ((b"PX", 1), (b"EX", 1000)):
        if name in names:
            lifetime = _integer(options[names.index(name) + 1]) * unit
    if b"KEEPTTL" in names and there:
        keys.change(key, value)
    else:
        keys.put(key, value)
    if lifetime is not None:
        keys.expire(key, keys.now() + lifetime)
    return OK


def _incrby(keys: Keyspace, key: bytes, by: int) -> int:
    value = _integer(keys.text(key)) + by
    if keys.get(key) is None:
        keys.put(key, b"%d" % value)
    else:
        keys.change(key, b"%d" % value)
    return value


def _del(keys: Keyspace, args: Args) -> int:
    return sum(keys.get(key) is not None and keys.remove(key) for key in args)


def _exists(keys: Keyspace, args: Args) -> int:
    return sum(keys.get(key) is not None for key in args)


def _pexpire(keys: Keyspace, args: Args) -> int:
    return int(keys.expire(args[0], keys.now() + _integer(args[1])))


def _expire(keys: Keyspace, args: Args) -> int:
    return int(keys.expire(args[0], keys.now() + 1000 * _integer(args[1])))


def _ttl(keys: Keyspace, args: Args) -> int:
    left = keys.left(args[0])
    return left if left < 0 else round(left / 1000)


_NAMES = ((bytes, b"string"), (Hash, b"hash"), (Set, b"set"), (Sorted, b"zset"), (Stream, b"stream"))


def _type(keys: Keyspace, args: Args) -> bytes:
    value = keys.get(args[0])
    return next((name for kind, name in _NAMES if isinstance(value, kind)), b"none")


def _scan(keys: Keyspace, args: Args) -> list[Any]:
    options = [arg.upper() for arg in args]
    pattern = args[options.index(b"MATCH") + 1].decode() if b"MATCH" in options else "*"
    found = [key for key in keys.names() if fnmatchcase(key.decode("latin-1"), pattern)]
    if b"TYPE" in options:
        wanted = args[options.index(b"TYPE") + 1].lower()
        found = [key for key in found if _type(keys, [key]) == wanted]
    return [b"0", found]


def _flush(keys: Keyspace, args: Args) -> bytes:
    keys.clear()
    return OK


def _time(keys: Keyspace, args: Args) -> list[bytes]:
    now = keys.now()
    return [b"%d" % (now // 1000), b"%d" % (now % 1000 * 1000)]


# ------------------------------------------------------------ hashes


def _hget(keys: Keyspace, args: Args) -> bytes | None:
    return keys.seen(args[0], Hash).get(args[1])


def _hmget(keys: Keyspace, args: Args) -> list[bytes | None]:
    found = keys.seen(args[0], Hash)
    return [found.get(field) for field in args[1:]]


def _hgetall(keys: Keyspace, args: Args) -> list[bytes]:
    return [part for pair in keys.seen(args[0], Hash).items() for part in pair]


def _hkeys(keys: Keyspace, args: Args) -> list[bytes]:
    return list(keys.seen(args[0], Hash))


def _hlen(keys: Keyspace, args: Args) -> int:
    return len(keys.seen(args[0], Hash))


def _hexists(keys: Keyspace, args: Args) -> int:
    return int(args[1] in keys.seen(args[0], Hash))


def _hset(keys: Keyspace, args: Args) -> int:
    if len(args) % 2 == 0:
        raise ResponseError("ERR wrong number of arguments for 'hset' command")
    found = keys.made(args[0], Hash)
    before = len(found)
    found.update(zip(args[1::2], args[2::2], strict=True))
    return len(found) - before


def _hincrby(keys: Keyspace, args: Args) -> int:
    by = _integer(args[2])
    known = keys.seen(args[0], Hash)
    value = _integer(known.get(args[1]), "ERR hash value is not an integer") + by
    keys.made(args[0], Hash)[args[1]] = b"%d" % value
    return value


def _remove(kind: type[Hash] | type[Set] | type[Sorted]) -> Callable[[Keyspace, Args], int]:
    def act(keys: Keyspace, args: Args) -> int:
        found: Any = keys.of(args[0], kind)
        if found is None:
            return 0
        before = len(found)
        for name in args[1:]:
            found.pop(name, None)
        removed = before - len(found)
        keys.tidy(args[0])
        return removed

    return act


# ------------------------------------------------------------ sets


def _sadd(keys: Keyspace, args: Args) -> int:
    found = keys.made(args[0], Set)
    before = len(found)
    found.update(dict.fromkeys(args[1:]))
    return len(found) - before


def _sismember(keys: Keyspace, args: Args) -> int:
    return int(args[1] in keys.seen(args[0], Set))


def _smembers(keys: Keyspace, args: Args) -> list[bytes]:
    return list(keys.seen(args[0], Set))


def _scard(keys: Keyspace, args: Args) -> int:
    return len(keys.seen(args[0], Set))


def _zadd(keys: Keyspace, args: Args) -> int:
    found = keys.made(args[0], Sorted)
    before = len(found)
    for score, member in zip(args[1::2], args[2::2], strict=True):
        found[member] = float(score)
    return len(found) - before


def _zcard(keys: Keyspace, args: Args) -> int:
    return len(keys.seen(args[0], Sorted))


def _zscore(keys: Keyspace, args: Args) -> bytes | None:
    score = keys.seen(args[0], Sorted).get(args[1])
    return None if score is None else _number(score)


def _number(score: float) -> bytes:
    return b"%d" % int(score) if score == int(score) else repr(score).encode()


def _score(text: bytes) -> tuple[float, bool]:
    """A border, and whether it is excluded."""
    out = text.startswith(b"(")
    return float(text[1:] if out else text), out


def _zrangebyscore(keys: Keyspace, args: Args) -> list[bytes]:
    found = keys.seen(args[0], Sorted)
    (low, above), (high, below) = _score(args[1]), _score(args[2])
    members = [
        member
        for member in found.ordered()
        if (found[member] > low if above else found[member] >= low)
        and (found[member] < high if below else found[member] <= high)
    ]
    members = _limited(members, args)
    if b"WITHSCORES" in [arg.upper() for arg in args[3:]]:
        return [part for member in members for part in (member, _number(found[member]))]
    return members


def _limited(members: list[bytes], args: Args) -> list[bytes]:
    """Those that ``LIMIT`` leaves, where it is among the options."""
    options = [arg.upper() for arg in args[3:]]
    if b"LIMIT" not in options:
        return members
    place = 3 + options.index(b"LIMIT")
    first, count = int(args[place + 1]), int(args[place + 2])
    return members[first:] if count < 0 else members[first : first + count]


def _zrangebylex(keys: Keyspace, args: Args) -> list[bytes]:
    """By name; as in a server, what that is where scores differ is open."""
    low, high = args[1:3]
    if not all(one in (b"-", b"+") or one[:1] in (b"[", b"(") for one in (low, high)):
        raise ResponseError("ERR min or max not valid string range item")
    members = [
        member
        for member in keys.seen(args[0], Sorted).ordered()
        if not _is_below(member, low, b"[") and _is_below(member, high, b"(")
    ]
    return _limited(members, args)


def _is_below(member: bytes, border: bytes, own: bytes) -> bool:
    """Whether a name is below a border; its own name is so, unless the border begins with `own`."""
    if border in (b"-", b"+"):
        return border == b"+"
    return member < border[1:] or (member == border[1:] and border[:1] != own)


def _zlexcount(keys: Keyspace, args: Args) -> int:
    return len(_zrangebylex(keys, args[:3]))


def _incr(keys: Keyspace, args: Args) -> int:
    return _incrby(keys, args[0], 1)


def _incrby_args(keys: Keyspace, args: Args) -> int:
    return _incrby(keys, args[0], _integer(args[1]))


def _pttl(keys: Keyspace, args: Args) -> int:
    return keys.left(args[0])


def _persist(keys: Keyspace, args: Args) -> int:
    return int(keys.persist(args[0]))


COMMANDS: dict[bytes, Kind] = {
    b"GET": Kind(_get, False, 1),
    b"SET": Kind(_set, True, 2),
    b"INCR": Kind(_incr, True, 1),
    b"INCRBY": Kind(_incrby_args, True, 2),
    b"DEL": Kind(_del, True, 1),
    b"UNLINK": Kind(_del, True, 1),
    b"EXISTS": Kind(_exists, False, 1),
    b"EXPIRE": Kind(_expire, True, 2),
    b"PEXPIRE": Kind(_pexpire, True, 2),
    b"PERSIST": Kind(_persist, True, 1),
    b"PTTL": Kind(_pttl, False, 1),
    b"TTL": Kind(_ttl, False, 1),
    b"TYPE": Kind(_type, False, 1),
    b"SCAN": Kind(_scan, False, 1),
    b"TIME": Kind(_time, False, 0),
    b"FLUSHALL": Kind(_flush, True, 0),
    b"FLUSHDB": Kind(_flush, True, 0),
    b"HGET": Kind(_hget, False, 2),
    b"HMGET": Kind(_hmget, False, 2),
    b"HGETALL": Kind(_hgetall, False, 1),
    b"HKEYS": Kind(_hkeys, False, 1),
    b"HLEN": Kind(_hlen, False, 1),
    b"HEXISTS": Kind(_hexists, False, 2),
    b"HSET": Kind(_hset, True, 3),
    b"HDEL": Kind(_remove(Hash), True, 2),
    b"HINCRBY": Kind(_hincrby, True, 3),
    b"SADD": Kind(_sadd, True, 2),
    b"SREM": Kind(_remove(Set), True, 2),
    b"SISMEMBER": Kind(_sismember, False, 2),
    b"SMEMBERS": Kind(_smembers, False, 1),
    b"SCARD": Kind(_scard, False, 1),
    b"ZADD": Kind(_zadd, True, 3),
    b"ZREM": Kind(_remove(Sorted), True, 2),
    b"ZCARD": Kind(_zcard, False, 1),
    b"ZSCORE": Kind(_zscore, False, 2),
    b"ZRANGEBYSCORE": Kind(_zrangebyscore, False, 3),
    b"ZRANGEBYLEX": Kind(_zrangebylex, False, 3),
    b"ZLEXCOUNT": Kind(_zlexcount, False, 3),
    b"XADD": Kind(streams.xadd, True, 4),
    b"XRANGE": Kind(streams.xrange, False, 3),
    b"XREVRANGE": Kind(streams.xrevrange, False, 3),
    b"XLEN": Kind(streams.xlen, False, 1),
    b"XTRIM": Kind(streams.xtrim, True, 3),
    b"XDEL": Kind(streams.xdel, True, 2),
}
