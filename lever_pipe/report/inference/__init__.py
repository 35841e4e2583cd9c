"""Statistical inference from results to long-format files: intervals, paired tests, endpoints, costs."""
