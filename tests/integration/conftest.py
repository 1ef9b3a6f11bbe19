from launching.fixtures import home, log, module_cluster, module_home, other, shoal_command

__all__ = ["home", "log", "module_cluster", "module_home", "other", "shoal_command"]
