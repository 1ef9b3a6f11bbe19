"""``RemoteFunction``, the class of decorated functions, for type checkers."""

from shoal._tasks.remote_function import RemoteFunction

__all__ = ["RemoteFunction"]
