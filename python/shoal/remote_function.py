"""``RemoteFunction``, the class of decorated functions, for type checkers."""

from shoal._remote import RemoteFunction

__all__ = ["RemoteFunction"]
