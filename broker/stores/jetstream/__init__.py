"""Channels as streams of real nats-servers (high-availability.md section C): their sequences are the channel's own.

What is published is stored by JetStream, and acknowledged when it has said so for this very message. What is delivered
is read from a copy in files, which is a cache: it can be behind, or gone.

    chain           messages into one stream, each behind the one before, until it is known what became of them
    messages        the messages of a channel: a chain, and the copy
    cutting         what a loss of power leaves of the copy
    state           clients and subscriptions: records in a stream of their own
    lease           a record as well: who of several servers writes
    subscriptions   the subscriptions of a channel, as such records
    opening         what a start finds, and what it refuses
    store           all of it as a `Store`

None of it knows of sockets: `ports` says what it needs, `broker.bus.jetstream_link` is that.
"""
