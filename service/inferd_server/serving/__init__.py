"""SERVING: the life of one request: a lease, a stream, an interruption, an end."""
