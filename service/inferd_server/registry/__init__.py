"""RESIDENCY: which models are in memory."""
