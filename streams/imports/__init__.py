"""Importing messages, each once, from sources that have positions, such as a plain Redis stream."""
