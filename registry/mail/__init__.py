"""Letters between processes: one mailbox for each, what leaves for them, and who lives next door."""
