"""The report: tables, claims, figures and the page."""
