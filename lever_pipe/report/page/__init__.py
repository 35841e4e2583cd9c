"""The pages: summaries, tables, figures and samples as HTML and Markdown in a language."""
