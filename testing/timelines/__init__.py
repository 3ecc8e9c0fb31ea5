"""Processes with event loops of virtual time."""
