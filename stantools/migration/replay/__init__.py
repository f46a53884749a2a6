"""Replay: messages of a store published again, at their own pace or any other."""
