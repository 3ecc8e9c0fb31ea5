"""How a process takes part in groups: its mailbox, the search for leaders, sessions and their borrowers.

Whoever consumes, a Python program or Spark, is told by events of the borrower (`borrower/events.py`), and
says something to the group through a session. This room reads no stream.
"""
