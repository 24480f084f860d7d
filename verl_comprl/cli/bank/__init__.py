"""Sub-commands of ``comprl bank``: inspect, export, import and edit an experience bank."""
