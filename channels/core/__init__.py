"""The machine of channels: mailboxes, sequences, acknowledgement, what is bounded and how. Pure."""
