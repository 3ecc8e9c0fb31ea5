"""Messages of sources that have positions, such as a plain Redis stream, brought in once."""
