"""What the store of finished work (`lever_pipe/store.py`) consists of: files, entries, what is removed and checked."""
