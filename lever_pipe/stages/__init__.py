"""One module a rule: keyword-only functions from named input files to named output files."""
