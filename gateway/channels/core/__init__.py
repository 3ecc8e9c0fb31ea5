"""The gateway's side of channels as a machine: commands, mailboxes, what is bounded and how. Pure."""
