"""Errors and warnings that only the broker logs: meaning, cause and remedy.

The texts of the original server are in `serverlog`; a test finds every text of the broker that is in neither. Lines
that several parts of the broker write in the same words have one entry.
"""

from __future__ import annotations

from typing import Final

from stantools.inspection.serverlog import LogLine, line_of

_DOCTOR: Final = "stop the broker, then: `stantools doctor STORE`"
_JETSTREAM: Final = "stop the broker, then: `stantools doctor STORE` with the store directory of the streams"
_BUG: Final = "a mistake of the broker's own; report it with the lines around it"
_CLIENT: Final = "check the client named in the line; the broker continues"
_NATS: Final = "see the log of the NATS server: `max_payload`, permissions, or why it ended"

BROKER_LINES: Final[tuple[LogLine, ...]] = (
    # Reasons of a start that fails.
    line_of(
        r"another broker is using this store|holds a store of its own",
        "the directory belongs to another broker, or is a store of its own; this broker did not start.",
        "",
        "give each broker a directory of its own (-dir)",
    ),
    line_of(
        r"Error listening on port",
        "the port for clients cannot be opened; the server did not start.",
        "another process uses the port, or the address is not one of this machine",
        "end that process, or give another port or address: -p, -a",
    ),
    line_of(
        r"discovered another streaming server with cluster ID|somebody else writes to stream",
        "another streaming server with the same cluster id is on this NATS server; this one ended.",
        "",
        "stop the other one, or give this one another cluster id (-cid); several brokers are a group: -clustered",
    ),
    line_of(
        r"unsupported store type|sql: unknown driver",
        "the server does not have this type of store, or no such driver.",
        "a misspelled -st or -sql_driver, or a SQL store, which stan-broker does not have",
        "-st FILE or -st jetstream; of a SQL store: `stantools salvage DUMP --out NEW`",
    ),
    line_of(
        r"unable to create the root directory|streams cannot be used: ",
        "the directory of the store or of the streams cannot be made or used.",
        "permissions, a parent that is missing, or a file of its name",
        "correct -dir or -sd",
    ),
    line_of(
        r"supported in FT mode",
        "two modes that exclude each other are configured; the server did not start.",
        "",
        "-ft_group goes with a file store, and without -clustered",
    ),
    line_of(
        r"NATS server with JetStream must be specified|has to be 2\.9 or newer|JetStream is not enabled there",
        "channels as streams need a nats-server of version 2.9 or newer with JetStream.",
        "",
        "name one with -ns, and put `jetstream {}` into its configuration",
    ),
    line_of(
        r"is not as the broker makes it|which is a subject of the channels|of channel .* is gone|has holes"
        r"|belongs to a group of servers",
        "the streams of the NATS server are not those of this broker; it did not start, and changed nothing.",
        "another client changed them, or a group of brokers uses them",
        "docs/high-availability.md has the remedy for each of these lines",
    ),
    # The process.
    line_of(
        r"The end in order takes longer than",
        "the broker ended before everything was closed.",
        remedy="none: acknowledged messages are kept",
    ),
    line_of(
        r"Internal error|Error in a handler|rror in the handler of|Error while handling input",
        "a request or a timer failed; all other work continues.",
        "",
        _BUG,
    ),
    line_of(
        r"Can't start monitoring|Error getting information about",
        "monitoring over HTTP does not work; clients are served.",
        "the port is in use, TLS files, or the package aiohttp is not installed",
        "correct the ports of monitoring",
    ),
    line_of(
        r"Out of file descriptors",
        "connections are refused: the process has reached its limit of open files.",
        "many clients or channels",
        "raise ulimit -n",
    ),
    line_of(
        r"Error writing ports file|Error cleaning up ports file",
        "the file with the ports could not be written or removed.",
        "permissions of -ports_file_dir",
        "correct the directory; clients are served",
    ),
    line_of(
        r"Could not write pidfile|Unable to rotate the logfile|error opening file: open",
        "a log file, or the file with the process id, cannot be written.",
        "permissions, or a full disk",
        "correct the path",
    ),
    line_of(
        r"Reload: |config reload not supported",
        "the configuration was not read again; the old one holds.",
        remedy="`stan-broker -t -c FILE` says what is wrong",
    ),
    line_of(
        r"(?:has )?no effect",
        "a key of the configuration file, or an option, has no effect.",
        "a typing error, or a key in the map of another level",
        "`stan-broker -t -c FILE` lists all of them",
    ),
    line_of(
        r"should be converted to a duration|timeout is ignored",
        "a time in the configuration has no unit.",
        remedy='write it with one: "10s"',
    ),
    line_of(
        r"Peer name contains ','",
        "the names of several nodes were given as one text, which was split.",
        remedy='write `peers: ["a", "b"]`',
    ),
    line_of(
        r"JetStream has no store_dir",
        "streams are kept in the temporary directory of the system.",
        "",
        "configure a directory: -sd DIR",
    ),
    line_of(
        r"no directory, but a link or a file|belongs to another user|other users may write in",
        "another user could have prepared the directory of the streams.",
        "a start with -js and without -sd",
        "configure a directory: -sd DIR",
    ),
    line_of(
        r"JetStream is not clustered|embedded NATS server is linked to no other|will not be verified",
        "an option works differently from what its name suggests; the line says how.",
    ),
    line_of(
        r"The store could not be closed", "the last changes may not be on disk.", "a full or failing disk", _DOCTOR
    ),
    line_of(
        r"What is wrong with the store, and what to do",
        "the broker did not start, because the store is damaged; the command in the line shows the damage "
        "and the next step.",
        "",
        "run that command",
    ),
    # The NATS server.
    line_of(
        r"Cluster name was dynamically generated|Plaintext passwords detected",
        "the configuration of the NATS server works, but should be improved.",
        remedy="set `cluster { name }`; use nkeys or bcrypt",
    ),
    line_of(
        r"Subscription Violation|Publish Violation|Permissions Violation",
        "a user may not use a subject; the request was refused.",
        "permissions of the user",
        "correct `permissions` in the file, or the client",
    ),
    line_of(
        r"authentication error|authentication timeout|Authorization Violation",
        "a client or server gave no credentials, or a wrong password, token or key.",
        "",
        "correct the client's login",
    ),
    line_of(
        r"maximum payload exceeded|max_payload of the NATS server is|is sent as \d+ bytes|limit of messages reached",
        "a message is larger than the NATS server accepts.",
        "max_payload differs between servers, or is too small",
        "raise max_payload of the NATS server to the number in the line",
    ),
    line_of(
        r"maximum connections exceeded|maximum subscriptions exceeded",
        "a limit of the NATS server refused a client.",
        "max_connections or max_subscriptions",
        "raise the limit, or find out why clients do not close",
    ),
    line_of(
        r"TLS handshake error",
        "a client or a server could not agree on TLS.",
        "certificates, or no TLS on one side",
        "compare the certificates of both sides",
    ),
    line_of(
        r"invalid client protocol|no responders requires headers|Client Error|Unknown Protocol Operation|Parser Error"
        r"|cid:\d+ - ",
        "a client does not speak the protocol, or its connection ended with an error.",
        "",
        _CLIENT,
    ),
    line_of(
        r"Error trying to connect to route|has a duplicate name|rid:\d+ - ",
        "another server of the cluster cannot be reached, or has the name of this one.",
        "network, ports, or names",
        "check `cluster { routes }` and `server_name` of both",
    ),
    # A remote NATS server, nodes.
    line_of(
        r'connection ".*?" has been disconnected|connection ".*?": ',
        "the connection to the NATS server was lost or refused; the broker reconnects.",
        "the NATS server, or the network",
        _NATS,
    ),
    line_of(
        r"The NATS server of this node has ended|The NATS server is not ready yet",
        "the nats-server of the node ended or does not answer; the broker starts it again.",
        "",
        _NATS,
    ),
    line_of(
        r"JetStream does not answer|This server cannot lead yet|The lease is lost|its state cannot be read yet"
        r"|cannot be gone on with yet|cannot be made: ",
        "the node does not serve, because JetStream has no majority or does not answer.",
        "fewer than half of the NATS servers run",
        "start the other nodes; the node continues by itself",
    ),
    line_of(
        r"The copy in files|The copy of channel|the copy in files|JetStream has lost it|has lost \d+ messages",
        "the copy of the channels in files and the streams differ; the messages of both are used.",
        "JetStream was unavailable, or lost data",
        "wait until the node follows again; then `stantools doctor STORE`",
    ),
    line_of(
        r"only the broker may write to it|its records are written again|What was there is kept in"
        r"|is cut at offset \d+ of \d+",
        "a file or a stream of a node was changed by another program, or by an unclean end; it is read again.",
        "",
        _DOCTOR,
    ),
    line_of(
        r'node_id ".*?" does not count|is in use; waiting for the broker',
        "the directory belongs to another node, or to a process that still runs.",
        "",
        "give each node a directory of its own, or wait",
    ),
    line_of(
        r"Unable to store clients and subscriptions|Unable to store subscriptions",
        "changes by clients are not in the store yet; the broker tries again.",
        "JetStream does not answer",
        _NATS,
    ),
    # Stores in files.
    line_of(
        r"Unable to (?:flush|sync|compact|expire|remove|undo a failed write|search for a time|store|update)"
        r"|could not be stored",
        "a file of the store could not be read or written; unacknowledged messages are refused.",
        "a full or failing disk, or permissions",
        "free space or repair the disk; " + _DOCTOR,
    ),
    line_of(
        r"Creating channel .* failed|Error deleting channel",
        "a channel could not be made or removed.",
        "a limit, or the disk",
        "raise -mc or free space",
    ),
    line_of(
        r"limit reached|Reached limits for store",
        "a channel is full: the oldest messages are removed for new ones.",
        "max_msgs or max_bytes",
        "raise the limits of the channel if the old messages are wanted",
    ),
    # Requests of streaming clients.
    line_of(
        r"Invalid (?:conn|Subscription|unsub|ClientID|DurableName)|[Ii]nvalid (?:client publish|close request)"
        r"|Invalid .* in subscription request|Unable to unmarshal|Missing ClientID|Unknown client"
        r"|for unknown (?:channel|inbox)|request of another client|channel .* not found|Refused a message for channel"
        r"|Duplicate durable subscription|Error processing message for subject|Error registering client"
        r"|Error unregistering client|Unable to (?:create|add) subscription|Error decoding activation time",
        "a request of a streaming client was refused; the reason is in the line.",
        "",
        _CLIENT,
    ),
    line_of(
        r"Timed out on heartbeats",
        "a client did not answer heartbeats any more, and was closed.",
        "the client ended or hangs, or the network is down",
        "start the client again; -hbi, -hbt and -hbf set the time",
    ),
    line_of(
        r"Failed sending to subid|subid=\d+, subject=\S+, seq=\d+, err=|Error deleting subscription",
        "a message could not be sent, or an acknowledgement could not be stored; the message is sent again.",
        "",
        "see the reason at the end of the line",
    ),
    line_of(
        r"cannot be delivered, nor can those behind it",
        "delivery of a channel stops at a message that is too large.",
        "max_payload of the NATS server was lowered",
        "raise it to the number in the line",
    ),
    line_of(
        r"Not recovering ghost|Duplicate shadow",
        "a subscription in the store has no client any more, or is stored twice.",
        "the server ended in between",
        "none needed; `stantools subs STORE` lists them",
        "orphan-subscription",
    ),
    line_of(
        r"Server information was not recovered",
        "server.dat was missing; the server begins with a new one.",
        "the file was removed",
        _DOCTOR,
        "server-missing",
    ),
    # Fault tolerance and partitions.
    line_of(
        r"ft: |Unable to send FT heartbeat|store lock",
        "the servers of a group could not agree on the active one.",
        "a file system without locks, or the NATS server is away",
        "all servers need the same directory and one NATS server",
    ),
    line_of(
        r"partitioning request|Partitioning error|channels list",
        "servers that share channels could not compare their lists.",
        "two servers name the same channel",
        "give each channel to one server only",
    ),
    # Streams.
    line_of(
        r"is not a stream \S+:",
        "a channel cannot be read as a stream.",
        "another stream has its name or subject",
        "rename the stream",
    ),
    line_of(
        r"is encrypted by its server|no valid meta\.inf|is left alone",
        "a stream or a consumer is not served; its files stay.",
        "encryption, or a damaged configuration",
        _JETSTREAM,
    ),
    line_of(
        r"holds streams that are not served|folder `jetstream` itself|streams of this account are not served",
        "another directory holds the streams that were probably meant.",
        "-sd names a directory above or below",
        "give the directory that the line names",
    ),
    line_of(
        r"moved to |a purge was interrupted|a change of the configuration was interrupted|is not used: "
        r"|takes its place|as they were|the file as it was|has another hash than|is missing or empty"
        r"|is empty: its messages|the same at \d+ more places|has the records of block|\.blk ",
        "the files of a stream were not left by a clean end. Intact data is served; moved files are kept next to it.",
        "a crash, a loss of power, or a damaged disk",
        _JETSTREAM,
    ),
    line_of(
        r"its transfer was given up",
        "a snapshot or a restore ended, because the other side was silent for five seconds.",
        "the client ended",
        "begin it again",
    ),
    line_of(
        r"skips it: |skips a message of |Stream '.*?': |Consumer '.*?' of '.*?': |cannot be synced: ",
        "a message or a state of a stream could not be read or written; the rest is served.",
        "a full or failing disk, or damage",
        _JETSTREAM,
    ),
)

#: Beginnings of lines after which the process ends, if no entry explains the reason in them.
FATAL_LINES: Final[tuple[LogLine, ...]] = (
    line_of(
        r"^Failed to start: ", "the server did not start, for the reason in the line.", "", "`stantools doctor STORE`"
    ),
    line_of(
        r"^panic: ", "the server ended at once: nothing may be written to the store after such an error.", "", _DOCTOR
    ),
)
