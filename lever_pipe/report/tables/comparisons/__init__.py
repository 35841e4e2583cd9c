"""What sets policies apart: intervals, paired tests, agreement of selections, two runs side by side."""
