"""Programs that use a migrated stream, in the languages of streaming clients: one reads a consumer, one publishes.

A consumer is bound by its name and that of its stream; a program that made one of its own would start elsewhere.
Packages: nats.go, jnats 2.17, NATS.Net 2, @nats-io/jetstream 3, nats-py 2.
"""

from __future__ import annotations

import json
import re

from stantools.migration.plan.migration_plan import ConsumerKind

#: Names of the languages for people, by the endings of their files.
LANGUAGES = {"go": "Go", "java": "Java", "cs": ".NET", "mjs": "Node", "py": "Python"}

_PULL = {
    "go": """\
package main

import (
	"context"
	"fmt"
	"log"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func main() {
	client, err := nats.Connect(SERVER)
	if err != nil {
		log.Fatal(err)
	}
	js, err := jetstream.New(client)
	if err != nil {
		log.Fatal(err)
	}
	consumer, err := js.Consumer(context.Background(), STREAM, CONSUMER)
	if err != nil {
		log.Fatal(err)
	}
	_, err = consumer.Consume(func(message jetstream.Msg) {
		fmt.Println(string(message.Data()))
		message.Ack()
	})
	if err != nil {
		log.Fatal(err)
	}
	select {}
}
""",
    "java": """\
import io.nats.client.*;

public class Reader {
    public static void main(String[] args) throws Exception {
        Connection client = Nats.connect(SERVER);
        ConsumerContext consumer = client.getConsumerContext(STREAM, CONSUMER);
        consumer.consume(message -> {
            System.out.println(new String(message.getData()));
            message.ack();
        });
        Thread.currentThread().join();
    }
}
""",
    "cs": """\
using System.Text;
using NATS.Net;

await using var client = new NatsClient(SERVER);
var consumer = await client.CreateJetStreamContext().GetConsumerAsync(STREAM, CONSUMER);
await foreach (var message in consumer.ConsumeAsync<byte[]>())
{
    Console.WriteLine(Encoding.UTF8.GetString(message.Data ?? []));
    await message.AckAsync();
}
""",
    "mjs": """\
import { jetstream } from "@nats-io/jetstream";
import { connect } from "@nats-io/transport-node";

const client = await connect({ servers: SERVER });
const consumer = await jetstream(client).consumers.get(STREAM, CONSUMER);
for await (const message of await consumer.consume()) {
  console.log(message.string());
  message.ack();
}
""",
    "py": """\
import asyncio

import nats


async def main():
    client = await nats.connect(SERVER)
    consumer = await client.jetstream().pull_subscribe_bind(CONSUMER, STREAM)
    while True:
        try:
            messages = await consumer.fetch(100, timeout=5)
        except nats.errors.TimeoutError:
            continue
        for message in messages:
            print(message.data.decode(), flush=True)
            await message.ack()


asyncio.run(main())
""",
}
_PUSH = {
    "go": """\
package main

import (
	"fmt"
	"log"

	"github.com/nats-io/nats.go"
)

func main() {
	client, err := nats.Connect(SERVER)
	if err != nil {
		log.Fatal(err)
	}
	js, err := client.JetStream()
	if err != nil {
		log.Fatal(err)
	}
	handle := func(message *nats.Msg) {
		fmt.Println(string(message.Data))
		message.Ack()
	}
	if _, err = js.SUBSCRIBE_GO(handle, nats.Bind(STREAM, CONSUMER), nats.ManualAck()); err != nil {
		log.Fatal(err)
	}
	select {}
}
""",
    "py": """\
import asyncio

import nats


async def take(message):
    print(message.data.decode(), flush=True)
    await message.ack()


async def main():
    client = await nats.connect(SERVER)
    stream = client.jetstream()
    consumer = await stream.consumer_info(STREAM, CONSUMER)
    await stream.subscribe_bind(STREAM, config=consumer.config, consumer=CONSUMER, cb=take, manual_ack=True)
    await asyncio.Event().wait()


asyncio.run(main())
""",
}
_PUBLISH = {
    "go": """\
package main

import (
	"context"
	"fmt"
	"log"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func main() {
	client, err := nats.Connect(SERVER)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	js, err := jetstream.New(client)
	if err != nil {
		log.Fatal(err)
	}
	acknowledgement, err := js.Publish(context.Background(), SUBJECT, []byte("hello"))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(acknowledgement.Stream, acknowledgement.Sequence)
}
""",
    "java": """\
import io.nats.client.*;
import io.nats.client.api.PublishAck;

public class Publisher {
    public static void main(String[] args) throws Exception {
        try (Connection client = Nats.connect(SERVER)) {
            PublishAck acknowledgement = client.jetStream().publish(SUBJECT, "hello".getBytes());
            System.out.println(acknowledgement.getStream() + " " + acknowledgement.getSeqno());
        }
    }
}
""",
    "cs": """\
using NATS.Client.JetStream;
using NATS.Net;

await using var client = new NatsClient(SERVER);
var acknowledgement = await client.CreateJetStreamContext().PublishAsync(SUBJECT, "hello");
acknowledgement.EnsureSuccess();
Console.WriteLine($"{acknowledgement.Stream} {acknowledgement.Seq}");
""",
    "mjs": """\
import { jetstream } from "@nats-io/jetstream";
import { connect } from "@nats-io/transport-node";

const client = await connect({ servers: SERVER });
const acknowledgement = await jetstream(client).publish(SUBJECT, "hello");
console.log(acknowledgement.stream, acknowledgement.seq);
await client.close();
""",
    "py": """\
import asyncio

import nats


async def main():
    client = await nats.connect(SERVER)
    acknowledgement = await client.jetstream().publish(SUBJECT, b"hello")
    print(acknowledgement.stream, acknowledgement.seq)
    await client.close()


asyncio.run(main())
""",
}
_NAMES = re.compile("SERVER|STREAM|CONSUMER|SUBJECT(?!_)|SUBSCRIBE_GO")


def reader_samples(server: str, stream: str, consumer: str, kind: ConsumerKind, group: str = "") -> dict[str, str]:
    """Returns a program for each language that reads a consumer; of push consumers, for Go and Python only.

    `group` is the deliver group of a push consumer.
    """
    go = f'QueueSubscribe("", {_quoted(group)},' if group else 'Subscribe("",'
    names = {"SERVER": server, "STREAM": stream, "CONSUMER": consumer}
    samples = _PULL if kind is ConsumerKind.PULL else _PUSH
    return {language: _filled(text.replace("SUBSCRIBE_GO(", f"{go} "), names) for language, text in samples.items()}


def publisher_samples(server: str, subject: str) -> dict[str, str]:
    """Returns a program for each language that publishes a message, and prints the acknowledgement of the stream."""
    return {language: _filled(text, {"SERVER": server, "SUBJECT": subject}) for language, text in _PUBLISH.items()}


def _filled(text: str, names: dict[str, str]) -> str:
    return _NAMES.sub(lambda found: _quoted(names[found[0]]) if found[0] in names else found[0], text)


def _quoted(text: str) -> str:
    """A literal that all of these languages read in the same way."""
    return json.dumps(text)
