"""Jobs: the heavy verbs over many stores, on a cluster. Each has the report of the local verb."""
