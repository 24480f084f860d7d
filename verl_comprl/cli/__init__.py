"""The command line: ``comprl``."""
