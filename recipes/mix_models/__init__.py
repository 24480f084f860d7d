"""Two small models for the mixes on the CPU: they know the formats of all six families, and play none of them well."""
