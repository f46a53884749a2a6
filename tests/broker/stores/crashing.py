"""A process that stores messages until it is killed; it says after every flush how far it has come.

Of its messages some are never acknowledged. What is noted of the others may be written later than it says.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

from broker.stores.file import FileStore
from broker.stores.store_options import FileOptions
from stantools.format.proto import store_pb2 as pb
from stantools.store.compactionrules import CompactionRules
from stantools.store.limits import UNLIMITED, SliceLimits, StoreLimits
from stantools.store.serverinfo import new_server_info
from tests.broker.stores.making import block, flush

NAME = b"foo"


def options(directory: Path, *, sync: bool) -> FileOptions:
    return FileOptions(
        directory,
        sync=sync,
        buffer_size=3000,
        slices=SliceLimits(500, 0),
        compaction=CompactionRules(min_size=0, interval=0.001, fragmentation=50),
    )


def payload(sequence: int) -> bytes:
    return b"%d;" % sequence * (sequence % 40)


def never_acknowledged(sequence: int) -> bool:
    return sequence % 17 == 0


def main(directory: Path, seed: int, *, sync: bool, waits: bool) -> None:
    chance = random.Random(seed)
    store = FileStore(options(directory, sync=sync), StoreLimits(0, UNLIMITED))
    if waits:
        store.postpone(lambda _at: None)
    found = store.recover()
    if found is None:
        store.init(new_server_info("test-cluster"))
        channel = store.create_channel(NAME)
        store.add_client(pb.ClientInfo(id=b"me", hb_inbox=b"_HB"))
        state = pb.SubState(client_id=b"me", inbox=b"_I", ack_inbox=b"_A", durable_name=b"d", is_durable=True)
        channel.subscriptions.create(state)
        channel.subscriptions.flush()
        number, pending = state.id, []
    else:
        channel, subscriptions = found.channels[NAME]
        number, pending = subscriptions[0].state.id, subscriptions[0].pending
        # What is not known to be sent is sent now.
        unsent = range(subscriptions[0].state.last_sent + 1, channel.messages.last + 1)
        channel.subscriptions.sent(number, unsent)
        pending += unsent
    messages = channel.messages
    print("ready", messages.last, flush=True)
    while True:
        begin = messages.last + 1
        for _ in range(chance.randint(1, 4)):
            count = chance.choice([1, 3, 50, 200])
            first = messages.last + 1
            messages.append(block(NAME, first, [payload(each) for each in range(first, first + count)]))
        flush(store, messages)
        channel.subscriptions.sent(number, range(begin, messages.last + 1))
        pending += range(begin, messages.last + 1)
        acked = [each for each in pending[:-10] if not never_acknowledged(each)]
        pending = [each for each in pending[:-10] if never_acknowledged(each)] + pending[-10:]
        channel.subscriptions.acked(number, acked)
        channel.subscriptions.flush()
        store.settle()
        if waits:
            store.maintain()
        if channel.single_store is not None:
            for _ in range(chance.choice([0, 1, 50])):
                records = block(NAME, messages.last + 1, [payload(messages.last + 1)])
                if channel.single_store.add((bytes(records.data), messages.last + 1, int(records.timestamps[0]))):
                    pending.append(messages.last)
                    channel.subscriptions.sent(number, pending[-1:])
            channel.subscriptions.flush()
            print("flushed", messages.last, *pending, flush=True)
        print("flushed", messages.last, *pending, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sync=sys.argv[3] == "sync", waits=sys.argv[3] == "later")
