"""Logs of what changed of facts, written in the same act, which the catalog follows."""
