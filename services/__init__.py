"""Services: typed requests to whoever serves a name, and their answers.

`service` is what ``client.serve`` gives, `caller` what ``client.call`` does. Both are of one `endpoint` per
client: its streams in Redis, its lease, and its lives. `outbox` sends for both, `binding` runs handlers,
`directory` knows who serves what, and `registration` is where that stands. `core` is pure: shapes of types,
frames, turns, and what is new.

The rules of the wire are at the head of `endpoint`; what each error promises, at the head of `caller`.
"""
