from launching.fixtures import home, shoal_command

__all__ = ["home", "shoal_command"]
