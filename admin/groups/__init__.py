"""``streamlease group``."""
