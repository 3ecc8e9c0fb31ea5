"""The borrower of EIP-0028: one shared subscription's streams on the consuming side.

`state` holds the two tables of legal transitions, `machine` the machine itself. Both are free of I/O: a
borrower is stepped with events and answers with effects, wherever it is embedded.
"""
