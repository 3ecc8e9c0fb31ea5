"""Files of an archive: where they lie, what they hold, and how their messages are read. Without Redis."""
