"""inferd_client: async and sync clients of an inferd server, and the `inferd` command."""
