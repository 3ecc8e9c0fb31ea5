"""``streamlease publish``, ``consume`` and ``import``."""
