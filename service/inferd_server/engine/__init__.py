"""METAL: the only room that imports mlx and mlx_lm."""
