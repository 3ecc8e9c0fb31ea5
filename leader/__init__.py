"""The leader of a shared subscription (EIP-0028) and the host that runs many of them.

`state` holds the table of legal lease transitions, `records` the durable state and the journal records that
alone change it, `planner` and `weighted` who should hold what, `machine` the leader itself, without I/O.
`journal` keeps the records in Redis under the term, `runner` drives one machine, `host` many runners.
"""
