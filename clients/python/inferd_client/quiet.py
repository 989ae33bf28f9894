"""Imported before grpc, which reads this variable when it is imported and never again.

In the `inferd` command grpc's core must not write lines of its own, one for each failed handshake: an error is one
line, and a server's log has its own form. A program that uses the client decides for itself.
"""

import os
import sys
from pathlib import PurePath

if PurePath(sys.argv[0] if sys.argv else "").stem == "inferd":
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
