from launching.fixtures import home, module_home, shoal_command

__all__ = ["home", "module_home", "shoal_command"]
