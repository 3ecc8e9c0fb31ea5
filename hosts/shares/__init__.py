"""Hosts share the groups: which part is whose, and how each takes its own."""
