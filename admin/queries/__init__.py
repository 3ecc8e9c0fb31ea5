"""Commands for executors and submitted queries."""
