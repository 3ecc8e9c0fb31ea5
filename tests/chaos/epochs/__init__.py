"""Epochs under chaos: publishers and readers that are killed and come back, and a judge."""
