"""Messages and the entries of a stream that hold them: schemas, encoding, decoding. Pure."""
