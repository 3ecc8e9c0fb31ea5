"""The rig for epochs: real publishers, keepers and atomic readers in virtual time, with faults of a seed.

``python -m tests.simulation.epochs --seeds A..B``
"""
