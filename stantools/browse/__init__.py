"""Interactive access to a store: windows of messages, search, timelines, records byte by byte."""
