"""Command ``comprl env``: shows the environments, and lets a person play one."""
