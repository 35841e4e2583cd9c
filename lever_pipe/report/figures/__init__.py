"""The report's figures: from collected results to drawings with the same bytes for the same numbers."""
