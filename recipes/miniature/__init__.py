"""The miniature: what experience is worth, measured on two cores in the diagnostic environment ``vaults``."""
