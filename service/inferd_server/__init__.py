"""inferd: a typed gRPC inference daemon for Apple MLX."""
