"""The rows of a sink: its tasks stage them, and a batch that is decided is appended exactly once."""
