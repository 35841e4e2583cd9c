"""The original trainer as an engine: it receives launch files, and its logs are converted."""
