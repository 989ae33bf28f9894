"""What lies in deploy/."""

from support.programs import MISSING, TESTED_WITH

collect_ignore = [TESTED_WITH[program] for program in MISSING]
