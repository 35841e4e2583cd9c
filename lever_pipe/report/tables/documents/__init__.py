"""The tables of documents 000 to 002 and those that they lack, from the collected results."""
