"""``streamlease gateway``."""
