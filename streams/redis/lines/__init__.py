"""Kept connections to one server, read and written without redis-py's own exchange around each command."""
