"""The command line: ``comprl doctor | bank | data | evaluate | train | view``."""
