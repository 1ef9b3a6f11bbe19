"""Actors as their callers see them: options, placement, creation, handles, calls, and the count of handles."""
