"""The table of planted bugs: tests/registry must catch every one of them."""

from mutations import promises, rooms

BUGS = (*promises.BUGS, *rooms.BUGS)
