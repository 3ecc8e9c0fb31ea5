"""Benchmarks: comparisons in one run on one Redis, printed as medians and ratios; nothing is asserted.

One module per subject, each with a function ``measure(frame)`` that yields tables; ``frame`` has what they
share. ``python -m bench [NAME...]`` runs them.
"""
