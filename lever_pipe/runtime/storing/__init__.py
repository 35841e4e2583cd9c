"""Parts of the store of finished work (`lever_pipe/runtime/store.py`): files, entries, what is removed and checked."""
