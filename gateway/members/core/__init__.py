"""What members ask for, what was handed out to them, and their ids. Pure: no I/O, no clock."""
