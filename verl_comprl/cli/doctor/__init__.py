"""Command ``comprl doctor``: checks installation, machine and, given a run's arguments, what that run needs."""
