"""Epochs of a space as far as they are pure: what is written down, and what it comes to.

============== =======================================================================
``lines``      what publishers and keepers write down, in one order
``fold``       what the lines come to: who holds which epochs, and what is complete
``boundaries`` up to where the streams have whole epochs
``silence``    which publishers are silent
``late``       what a reader of several spaces may see
``early``      what a reader of staged messages has seen, and what not
``whole``      where the messages of an epoch stand, and when it is complete for a reader
============== =======================================================================
"""
