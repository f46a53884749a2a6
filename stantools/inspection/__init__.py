"""Questions about a store: overview, verify, forecast, subscription state. Nothing in this package can write."""
