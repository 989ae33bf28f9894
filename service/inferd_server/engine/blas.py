"""Which BLAS the CPU backend calls. Has to run before the first import of mlx in the process."""

import ctypes
import sys
from contextlib import suppress


def prefer_openblas() -> None:
    """On Linux, let MLX find OpenBLAS before the reference BLAS that its wheel brings (measured: prompts are read ten
    times faster). Where it is not installed nothing changes; no result depends on it beyond rounding."""
    if sys.platform == "linux" and "mlx.core" not in sys.modules:
        with suppress(OSError):
            ctypes.CDLL("libopenblas.so.0", mode=ctypes.RTLD_GLOBAL)
