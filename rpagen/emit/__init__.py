"""Text: how variants become checked-in Python modules."""
