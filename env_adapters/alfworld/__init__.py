"""ALFWorld: household tasks in text, played on the TextWorld engine."""
