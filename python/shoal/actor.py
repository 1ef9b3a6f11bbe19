"""``exit_actor``, by which an actor ends itself, and the names of handles and classes for type checkers."""

from shoal._actors.actor_class import ActorClass, ActorClassInheritanceException
from shoal._actors.handle import ActorHandle, ActorMethod
from shoal._actors.options import method
from shoal._worker.ending import exit_actor

__all__ = ["ActorClass", "ActorClassInheritanceException", "ActorHandle", "ActorMethod", "exit_actor", "method"]
