"""The grid's page: cells with their intervals, what separates them, and one picture of all."""
