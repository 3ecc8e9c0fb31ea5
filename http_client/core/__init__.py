"""What a client of the gateway decides: which messages are next, when to ask, when to subscribe. Pure."""
