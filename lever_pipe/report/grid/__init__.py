"""The grid's page: cells with their intervals, separated comparisons, and one picture of all cells."""
