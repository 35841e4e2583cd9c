"""Pure statistics of accuracies: intervals, paired comparisons and families of tests."""
