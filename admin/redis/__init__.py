"""The Redis that Streamlease brings along."""
