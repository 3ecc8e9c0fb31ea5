"""HTTP/1.1 on one connection: requests in, answers out, and what no client may do to a server."""
