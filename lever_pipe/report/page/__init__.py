"""The pages: cards, tables, figures and samples as HTML and Markdown in a language."""
