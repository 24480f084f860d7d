"""Vaults: codes that hold for a whole world, to be found out in one episode and used in others, as text."""
