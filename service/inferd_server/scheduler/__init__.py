"""BATCHING: who runs next inside one loaded model."""
