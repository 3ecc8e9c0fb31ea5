"""Pages: some messages behind a cursor, chosen, taken together and shown."""
