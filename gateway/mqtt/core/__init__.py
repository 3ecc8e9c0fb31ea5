"""What the bridge decides, without I/O."""
