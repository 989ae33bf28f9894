"""Large libraries are imported when a model first needs them, on its thread: one thread at a time.

Python locks each module apart. Two threads that enter packages with circular imports from different ends wait for each
other, and one of them gets a `_DeadlockError` (seen: a vision model and an embedder, loading side by side).
"""

import threading

IMPORTS = threading.RLock()
"""Held around every import on a thread of mlx_lm, mlx_vlm or what imports them."""
