"""Collections: spaces whose messages are changes of a multiset.

``core`` adds changes up; beside it, what is read and written in Redis.
"""
