"""AROUND: what wraps every call."""
