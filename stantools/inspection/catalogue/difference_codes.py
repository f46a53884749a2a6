"""Codes of differences: of two stores, of two nodes, and of a store and the streams it was migrated to."""

from __future__ import annotations

from stantools.inspection.catalogue.finding_code import BITROT, ERROR, INFO, WARNING, FindingCode

_AGAIN = "delete the stream and migrate its channels again"
_LOOK_AT_NODES = (
    "`stantools merge NODE... --dry-run` says which one counts; name all nodes; `stantools records FILE` "
    "prints the entries of a raft.log"
)
_LOOK_AT_BOTH = "find out which of the two was changed; `stantools messages STORE CHANNEL` prints messages of a store"
_DELIVERS = "nats-server delivers the content of the stream; consumers cannot notice the difference"

DIFFERENCES = (
    FindingCode(
        "stream-missing",
        ERROR,
        "a planned stream is missing",
        "it was never created, or was deleted; the connection belongs to another account",
        "nats-server knows nothing of it",
        "check server, account and domain; then migrate its channels",
    ),
    FindingCode(
        "stream-state",
        ERROR,
        "a stream has another number of messages, or another first or last sequence, than expected",
        "limits of the stream removed messages, clients published new ones, or a restore was cut short",
        "nats-server assigns the next message the sequence after the last one that it knows",
        _AGAIN + ", or look at its limits",
    ),
    FindingCode(
        "stream-config",
        WARNING,
        "a stream with another configuration than planned",
        "it was changed, or the plan was changed since",
        "it uses the configuration that it has",
        "update the stream, if the difference is not wanted; a backup has to be rewritten",
    ),
    FindingCode(
        "archive-damaged",
        ERROR,
        "a backup or a stream's directory that has changed since it was written",
        BITROT + "; a copy that was cut short",
        "it skips the rest of a block after a damaged record, without an error; other damage makes a restore fail",
        "remove it and write it again from the store",
    ),
    FindingCode(
        "channel-missing",
        ERROR,
        "a channel, or stream of a directory, that only the first of two has",
        "it was deleted, or never copied",
        "it knows nothing of the channel",
        _LOOK_AT_BOTH,
    ),
    FindingCode(
        "channel-extra",
        ERROR,
        "a channel, or stream of a directory, that only the second of two has",
        "it was made later",
        "it recovers the channel",
        _LOOK_AT_BOTH,
    ),
    FindingCode(
        "message-missing",
        ERROR,
        "messages that are in the first place and not in the second",
        "they were removed by limits, deleted, or never copied",
        "consumers skip them",
        _LOOK_AT_BOTH,
    ),
    FindingCode(
        "message-extra",
        ERROR,
        "messages that are in the second place and not in the first",
        "clients published them later, or another program put them there",
        "it delivers them like any other",
        _LOOK_AT_BOTH,
    ),
    FindingCode(
        "message-payload",
        ERROR,
        "messages whose payload differs",
        "one of the two was rewritten, or encrypted payloads were decrypted on the way",
        _DELIVERS,
        _LOOK_AT_BOTH,
    ),
    FindingCode(
        "message-timestamp",
        ERROR,
        "messages whose time differs",
        "they were published again instead of being restored",
        "nats-server and the limits by age use the stored time",
        _LOOK_AT_BOTH,
    ),
    FindingCode(
        "message-subject",
        ERROR,
        "messages whose subject differs",
        "another subject mapping, or another stream",
        "nats-server delivers them to subscribers of the stored subject",
        _LOOK_AT_BOTH,
    ),
    FindingCode(
        "message-headers",
        ERROR,
        "messages whose headers do not carry the expected reply and origin",
        "another program migrated them, or with other options",
        _DELIVERS,
        _LOOK_AT_BOTH,
    ),
    FindingCode(
        "message-reply",
        ERROR,
        "messages whose reply subject differs",
        "one of the two was rewritten",
        "it delivers the reply subject that is stored",
        _LOOK_AT_BOTH,
    ),
    FindingCode(
        "consumer-missing",
        ERROR,
        "a planned consumer is missing, or a consumer that only one of two directories has",
        "it was deleted, or was inactive for too long",
        "nats-server knows nothing of the durable's position",
        "migrate the stream again, or create the consumer manually at the position in the plan",
    ),
    FindingCode(
        "consumer-position",
        ERROR,
        "a consumer whose position differs from that of the durable",
        "clients have used it since; it was created manually; or a server that was down while a stream with "
        "replicas was loaded came back, became leader of the consumer and did not know its position (seen with 2.9)",
        "nats-server delivers from the consumer's position: messages come again, or never",
        "if no client has used it: " + _AGAIN,
    ),
    FindingCode(
        "consumer-config",
        WARNING,
        "a consumer with another configuration than planned",
        "it was updated",
        "nats-server uses the configuration that it has",
        "update the consumer, if the difference is not wanted",
    ),
    FindingCode(
        "subscription-differs",
        ERROR,
        "a subscription that only one of two stores has, or that differs between them",
        "clients used one of the stores meanwhile; a repair changed it",
        "it delivers from the subscription's position: messages come again, or never",
        "`stantools subs STORE` prints the subscriptions of a store",
    ),
    FindingCode(
        "client-differs",
        WARNING,
        "a client that only one of two stores has, or that differs between them",
        "clients used one of the stores meanwhile",
        "it waits for clients that it knows, and removes their subscriptions if they stay away",
        "`stantools clients STORE` prints the clients of a store",
    ),
    FindingCode(
        "server-differs",
        INFO,
        "the identity of two stores differs",
        "they belong to different clusters, or server.dat was recreated",
        "clients have to connect with the cluster id in server.dat",
        "no action is needed",
    ),
    FindingCode(
        "entry-differs",
        ERROR,
        "an entry of which the Raft logs of two nodes have different copies with the same index and term",
        BITROT + "; or they are nodes of different clusters",
        "it applies its own copy, so that its state differs from the others",
        _LOOK_AT_NODES,
    ),
    FindingCode(
        "entry-branch",
        WARNING,
        "entries of one node's Raft log that the other node has replaced by entries of a later term",
        "the node was the leader when it wrote them, and was replaced before a majority had them",
        "it discards them when it hears of the later leader",
        _LOOK_AT_NODES,
    ),
    FindingCode(
        "log-behind",
        INFO,
        "the Raft log of one node ends before that of the other",
        "the node stopped earlier, or had not caught up",
        "the leader sends it the missing entries, or a snapshot",
        "no action is needed",
    ),
)
