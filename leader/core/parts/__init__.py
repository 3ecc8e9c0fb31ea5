"""The parts that a leader is composed of: each owns its state, and only its own methods change it."""
