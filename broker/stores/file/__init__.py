"""The file store: the original's files, byte for byte (filestore.md).

recovery         what is there, after the same repairs as the original makes at start
store            clients, channels, the identity of the server
messages         the slices of a channel: appending, limits, taking back what could not be stored
channelreader    messages from memory, else from the files
reading          messages from the files
subscriptions    a channel's subs.dat
directories      a channel's directory: made with the first messages, removed, by threads
later            what is noted of subscriptions is written a little later
disk             threads and the kernel, which write and sync
locks            who may write: one broker, the active server of a group
services         what all channels share: bounds for open files and memory, the archive script, what to sync
"""

from broker.stores.file.store import FileStore

__all__ = ["FileStore"]
