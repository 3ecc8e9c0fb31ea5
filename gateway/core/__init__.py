"""What the gateway decides without I/O: cursors, bodies, rights, limits, whom a message wakes. Pure."""
