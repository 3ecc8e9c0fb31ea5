"""Spark's calls, and the conversations with the leader that answer them; they share a desk."""
