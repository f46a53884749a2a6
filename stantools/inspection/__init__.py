"""Questions about a store: overview, verify, forecast, subscriptions. Nothing in this package writes to a store."""
