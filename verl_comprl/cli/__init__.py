"""The command line: ``comprl doctor | bank | data | train``."""
