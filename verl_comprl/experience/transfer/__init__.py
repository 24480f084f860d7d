"""Whole banks: snapshots, import and export, verification, and the query language of the command line."""
