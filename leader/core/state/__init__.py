"""The state of a group that a journal keeps, and the records that change it. Pure."""
