"""One module a rule: keyword-only functions from named files to named files, which their types tell apart."""
