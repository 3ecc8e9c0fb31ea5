"""``streamlease space``."""
