"""Where a member of a group, or the channel of a client, is served, and who may take it over."""
