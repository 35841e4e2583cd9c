"""Pure statistics of accuracies: intervals, paired comparisons, families of tests; numbers in, numbers out."""
