"""Adding changes up. Pure."""
