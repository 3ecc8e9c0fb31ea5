"""The borrower of EIP-0028: one shared subscription's streams on the consuming side.

`lease` and `life` hold the tables of legal transitions, `machine` composes its parts. `book` keeps a
consumer's work on its streams from lease to lease, whichever borrower has them. All are free of I/O: they are
stepped with events, wherever they are embedded.
"""
