"""Operations on whole banks: snapshots, import, export, verification, and the command line's query language."""
