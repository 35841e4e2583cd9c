"""The report as one page: finished tables and figures in, HTML and Markdown out; no number is computed here."""
