"""The command's part in epochs: ``epochs show`` and ``epochs abort``."""
