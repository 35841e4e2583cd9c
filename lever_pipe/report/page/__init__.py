"""The pages in a language: summaries, tables, figures and samples as HTML and Markdown."""
