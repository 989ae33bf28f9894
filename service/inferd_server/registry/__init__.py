"""RESIDENCY: which models are in memory, and who may use them."""
