"""Shows runs in a browser: collects what their folders hold and writes one HTML file (docs/viewer.md).

``run`` reads a run into tables, ``page`` writes the file, ``web/`` is what runs in the browser. Imports neither
verl nor torch.
"""
