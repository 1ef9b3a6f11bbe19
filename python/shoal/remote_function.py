"""``RemoteFunction``, the class of decorated functions, for type checkers."""

from shoal._actors.creation import RemoteFunction

__all__ = ["RemoteFunction"]
