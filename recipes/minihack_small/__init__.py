"""Two small models that play rooms of MiniHack and know the formats; what to do there is for training to find out."""
