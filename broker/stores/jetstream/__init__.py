"""Channels as streams of real nats-servers (high-availability.md section C): a stream's sequences are the channel's.

JetStream stores the published messages, and a message is acknowledged when JetStream has confirmed this very
message. Deliveries read a copy in files. The copy is a cache: it may lag, or be missing.

    exact_publisher          publishes messages to one stream, each at an expected sequence
    jetstream_messages       the messages of a channel: a publisher and the copy
    copy                     a copy, and how it follows its stream
    copy_repair              cuts a copy to its valid messages after a loss of power
    state                    clients and subscriptions: records in a stream of their own
    lease                    the record that says which of several servers writes
    jetstream_subscriptions  the subscriptions of a channel, as records of the state
    start_check              reads the streams at a start, and refuses unsuitable ones
    store                    the whole as a `StateStore`
    node                     the directory of a node that starts its own NATS server

These modules open no sockets: `jetstream_port` declares the JetStream interface, which `broker.bus.jetstream_link`
implements.
"""
