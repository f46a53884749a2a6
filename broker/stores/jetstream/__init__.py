"""Channels as streams of real nats-servers (high-availability.md section C): a stream's sequences are the channel's.

JetStream stores the published messages, and a message is acknowledged when JetStream has confirmed this very
message. Deliveries read a copy in files. The copy is a cache: it may lag, or be missing.

    chain           publishes messages to one stream, each at an expected sequence, and settles unknown outcomes
    messages        the messages of a channel: a chain and the copy
    cutting         cuts a copy to its valid messages after a loss of power
    state           clients and subscriptions: records in a stream of their own
    lease           the record that says which of several servers writes
    subscriptions   the subscriptions of a channel, as records of the state
    opening         reads the streams at a start, and refuses those that do not fit
    store           the whole as a `Store`

None of these modules opens sockets: `ports` declares the JetStream interface, `broker.bus.jetstream_link` implements it.
"""
