"""METAL: the only room that imports mlx and mlx_lm."""

from .blas import prefer_openblas

prefer_openblas()
