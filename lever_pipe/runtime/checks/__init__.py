"""What is looked at before the first job, and by `doctor`."""
