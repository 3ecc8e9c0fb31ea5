"""The rig for archives: real hosts and readers over the seam in virtual time, with faults of a seed.

``python -m tests.simulation.archive --seeds A..B``
"""
