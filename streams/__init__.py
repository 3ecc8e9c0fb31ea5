"""The durable log: topic spaces, their streams, and appending to and reading from them.

From the bottom up: ``connection`` (one exchange of commands with Redis and what its failure means),
``scripts`` (Lua, one file per atomic act), ``keys`` (names), ``entries`` (how messages stand in an
entry), ``ranges`` (reading offsets from a stream, without I/O), ``log`` (append and read), ``spaces``
(definitions), ``publisher`` (batching, retries, back-pressure) and ``tails`` (who has something new).

This room knows neither groups nor leaders.
"""
