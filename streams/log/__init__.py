"""The log: append to streams, read ranges of them, and learn of what is new."""
