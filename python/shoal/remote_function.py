"""``RemoteFunction``: what ``remote`` makes of a function. For type checkers."""

from shoal._remote import RemoteFunction

__all__ = ["RemoteFunction"]
