"""``streamlease gateway`` and ``streamlease bridge``: ways to the log for other systems."""
