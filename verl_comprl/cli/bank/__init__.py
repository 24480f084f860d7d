"""Sub-commands of ``comprl bank``: inspect, change, build and serve an experience bank."""
