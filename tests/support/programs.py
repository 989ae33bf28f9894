"""Programs of others that some tests need. Where one is missing its file is not collected, and the header says so."""

import shutil

TESTED_WITH = {"nginx": "test_nginx.py", "systemd-analyze": "test_systemd_analyze.py"}
"""The file of tests/deploy that needs each."""

MISSING = [program for program in TESTED_WITH if shutil.which(program) is None]
