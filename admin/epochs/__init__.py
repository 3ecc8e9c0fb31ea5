"""The command's part in epochs: ``epochs show``, ``epochs abort`` and ``epochs close``."""
