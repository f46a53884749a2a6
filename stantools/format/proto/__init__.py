"""Protobuf messages of the file store and of a clustered node's raft log, generated from `store.proto`."""
