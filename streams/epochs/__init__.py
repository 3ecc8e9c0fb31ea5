"""Epochs over the streams of a space: staged data, lines, the keeper's fold, boundaries.

The algebra of epochs stands in `protocol/epochs/`; what stands in Redis and who writes it in
`docs/decisions/0268-epochs-are-staged-and-kept.md`.

==================== =====================================================================
``keys``             names of the keys
``core/``            pure: lines and boundaries, what the lines come to, who is silent
``epoch_publisher``  sending messages of epochs, and giving epochs up
``staged_log``       appending to the staged logs of streams
``presence``         that a publisher is there: it enters, lives, and writes its lines
``writing``          writing a line: entering, advancing, leaving, signs of life
``stored``           reading lines and boundaries, and the fold of all lines
``keeping``          the acts of a keeper: decide, move, drop, record
``beginning``        at which boundary a reader begins
``boundary_reading`` following boundaries, and what Redis lost of them
``staged_reading``   following what is staged
``stretch_reading``  reading the messages of an epoch from the streams
==================== =====================================================================
"""
