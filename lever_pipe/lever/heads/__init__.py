"""What scores a pool after some picks, by `selector.head`."""
