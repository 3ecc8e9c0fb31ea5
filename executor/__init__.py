"""Executors: processes that run the workers of submitted queries."""
