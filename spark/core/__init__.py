"""What a query decides about cuts, without I/O."""
