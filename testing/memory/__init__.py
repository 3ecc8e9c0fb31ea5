"""A Redis in memory, and the way to it."""
