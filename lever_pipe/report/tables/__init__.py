"""The report's tables: from collected results and published numbers to frames of text."""
