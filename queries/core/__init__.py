"""What a query is, what becomes of it, where its workers go, and what is signed. Pure."""
