"""Equations of the method as pure functions on arrays; imports only torch and numpy."""
