"""What a reader sees: tables, claims, figures and the page."""
