"""The file store: the original's files, byte for byte (filestore.md).

recovery             the state at the start, after the same repairs as the original makes
store                clients, channels, the identity of the server
file_messages        the slices of a channel: appending, limits
message_flush        writing and syncing them aside from the loop, undoing failed writes
channelreader        messages from memory, else from the files
reading              messages from the files
file_subscriptions   a channel's subs.dat
directories          a channel's directory: threads make it with the first messages, and remove it
deferred_log_writes  delayed writing of subscription records
disk                 threads and the kernel, which write and sync
locks                locks of one broker, and of the active server of a group
services             shared by all channels: bounds for open files and memory, the archive script
"""

from broker.stores.file.store import FileStore

__all__ = ["FileStore"]
