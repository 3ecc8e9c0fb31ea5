"""Plain subscriptions to spaces with epochs: whole epochs, or what is staged as it comes.

==================== =================================================================
``epoch_items``      what they hand out
``opening``          which spaces a filter means, and where each begins
``atomic``           whole epochs, boundary by boundary
``eager``            what is staged, as it comes
``epoch_reading``    the subscription: a context manager and iterator
==================== =================================================================
"""
