"""Sources: whatever a user names as STORE is recognised, and opened as one kind of object."""
