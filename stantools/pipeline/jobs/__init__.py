"""Jobs: the heavy verbs over many stores, on a cluster. Each reports what the local verb reports."""
