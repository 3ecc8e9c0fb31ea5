"""What a guard does. Pure."""
