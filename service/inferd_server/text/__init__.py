"""TEXT: between token ids and text; no arrays."""
