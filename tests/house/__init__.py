"""The order of the house, kept by tests: packages, who may import whom, what may be committed.

The rules are those of section 2 of the design: every room knows its own job, the machines of leader and
borrower have no input or output, and nothing that is committed depends on where it was written.
"""
