/* What the C client of NATS (with NATS Streaming) sees of a server: `scenarios URL CLUSTER SCENARIO`, the result as
 * JSON in one line on stdout. */
#define NATS_HAS_STREAMING
#include <nats.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MOST 2048

static const char *url, *cluster;

static void fail(const char *what, natsStatus status)
{
    fprintf(stderr, "%s: %s\n%s\n", what, natsStatus_GetText(status), nats_GetLastError(NULL));
    exit(1);
}

static void check(const char *what, natsStatus status)
{
    if (status != NATS_OK)
        fail(what, status);
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* Connecting and publishing. */

static natsStatus try_connect(stanConnection **sc, const char *id, stanConnOptions *options)
{
    stanConnOptions *mine = options;
    if (mine == NULL)
        check("options", stanConnOptions_Create(&mine));
    check("url", stanConnOptions_SetURL(mine, url));
    check("wait", stanConnOptions_SetConnectionWait(mine, 5000));
    natsStatus status = stanConnection_Connect(sc, cluster, id, mine);
    stanConnOptions_Destroy(mine);
    return status;
}

static stanConnection *connected(const char *id)
{
    stanConnection *sc = NULL;
    check("connect", try_connect(&sc, id, NULL));
    return sc;
}

static void closed(stanConnection *sc)
{
    check("close", stanConnection_Close(sc));
    stanConnection_Destroy(sc);
}

static void publish(stanConnection *sc, const char *channel, const char *text)
{
    check("publish", stanConnection_Publish(sc, channel, text, (int)strlen(text)));
}

/* What a subscription has got. */

typedef struct
{
    pthread_mutex_t lock;
    int count;
    uint64_t sequences[MOST];
    bool redelivered[MOST];
    char texts[MOST][16];
    int size;
    stanMsg *messages[MOST];
    bool acknowledge;
} Seen;

static Seen *nothing(void)
{
    Seen *seen = calloc(1, sizeof *seen);
    pthread_mutex_init(&seen->lock, NULL);
    return seen;
}

static void take(stanConnection *sc, stanSubscription *sub, const char *channel, stanMsg *message, void *closure)
{
    Seen *seen = closure;
    (void)sc, (void)channel;
    pthread_mutex_lock(&seen->lock);
    if (seen->count < MOST)
    {
        int n = seen->count;
        seen->sequences[n] = stanMsg_GetSequence(message);
        seen->redelivered[n] = stanMsg_IsRedelivered(message);
        seen->size = stanMsg_GetDataLength(message);
        int size = seen->size < 15 ? seen->size : 15;
        memcpy(seen->texts[n], stanMsg_GetData(message), (size_t)size);
        seen->messages[n] = message;
        if (seen->acknowledge)
            stanSubscription_AckMsg(sub, message);
        seen->count++;
    }
    pthread_mutex_unlock(&seen->lock);
}

static int counted(Seen *seen)
{
    pthread_mutex_lock(&seen->lock);
    int count = seen->count;
    pthread_mutex_unlock(&seen->lock);
    return count;
}

static void until(Seen *seen, int number)
{
    double deadline = now() + 15;
    while (counted(seen) < number)
    {
        if (now() > deadline)
        {
            fprintf(stderr, "%d of %d messages came\n", counted(seen), number);
            exit(1);
        }
        nats_Sleep(2);
    }
}

typedef struct
{
    bool first, last, manual;
    uint64_t sequence;
    int64_t delta, ack_wait;
    int max_in_flight;
    const char *durable, *queue;
} Wanted;

static natsStatus try_subscribe(stanSubscription **sub, stanConnection *sc, const char *channel, Seen *seen, Wanted wanted)
{
    stanSubOptions *options = NULL;
    check("options", stanSubOptions_Create(&options));
    if (wanted.first)
        check("first", stanSubOptions_DeliverAllAvailable(options));
    if (wanted.last)
        check("last", stanSubOptions_StartWithLastReceived(options));
    if (wanted.sequence)
        check("sequence", stanSubOptions_StartAtSequence(options, wanted.sequence));
    if (wanted.delta)
        check("delta", stanSubOptions_StartAtTimeDelta(options, wanted.delta));
    if (wanted.manual)
        check("manual", stanSubOptions_SetManualAckMode(options, true));
    if (wanted.ack_wait)
        check("ack wait", stanSubOptions_SetAckWait(options, wanted.ack_wait));
    if (wanted.max_in_flight)
        check("in flight", stanSubOptions_SetMaxInflight(options, wanted.max_in_flight));
    if (wanted.durable)
        check("durable", stanSubOptions_SetDurableName(options, wanted.durable));
    natsStatus status = wanted.queue ? stanConnection_QueueSubscribe(sub, sc, channel, wanted.queue, take, seen, options)
                                     : stanConnection_Subscribe(sub, sc, channel, take, seen, options);
    stanSubOptions_Destroy(options);
    return status;
}

static stanSubscription *subscribe(stanConnection *sc, const char *channel, Seen *seen, Wanted wanted)
{
    stanSubscription *sub = NULL;
    check("subscribe", try_subscribe(&sub, sc, channel, seen, wanted));
    return sub;
}

/* JSON. */

static void numbers(const char *name, Seen *seen, int begin, int end)
{
    printf("\"%s\": [", name);
    for (int n = begin; n < end; n++)
        printf("%s%llu", n > begin ? ", " : "", (unsigned long long)seen->sequences[n]);
    printf("]");
}

static void texts(const char *name, Seen *seen)
{
    printf("\"%s\": [", name);
    for (int n = 0; n < seen->count; n++)
        printf("%s\"%s\"", n ? ", " : "", seen->texts[n]);
    printf("]");
}

/* Returns an error's text without the place in the library. */
static const char *said(natsStatus status)
{
    const char *text = nats_GetLastError(NULL);
    if (text == NULL)
        return natsStatus_GetText(status);
    const char *place = strstr(text, "): ");
    return place ? place + 3 : text;
}

/* The scenarios. */

static void basic(void)
{
    stanConnection *sc = connected("c-basic");
    const char *words[] = {"one", "two", "three"};
    for (int n = 0; n < 3; n++)
        publish(sc, "basic-c", words[n]);
    Seen *seen = nothing();
    stanSubscription *sub = subscribe(sc, "basic-c", seen, (Wanted){.first = true});
    until(seen, 3);
    publish(sc, "basic-c", "four");
    until(seen, 4);
    check("unsubscribe", stanSubscription_Unsubscribe(sub));
    closed(sc);
    printf("{"), numbers("sequences", seen, 0, seen->count), printf(", "), texts("texts", seen), printf("}\n");
}

static pthread_mutex_t acks_lock = PTHREAD_MUTEX_INITIALIZER;
static int acks, ack_errors;

static void acked(const char *guid, const char *error, void *closure)
{
    (void)guid, (void)closure;
    pthread_mutex_lock(&acks_lock);
    acks++;
    ack_errors += error != NULL;
    pthread_mutex_unlock(&acks_lock);
}

static void publish_async(void)
{
    stanConnection *sc = connected("c-async");
    char text[16];
    for (int n = 0; n < 500; n++)
    {
        int size = snprintf(text, sizeof text, "%d", n);
        check("publish", stanConnection_PublishAsync(sc, "async-c", text, size, acked, NULL));
    }
    Seen *seen = nothing();
    subscribe(sc, "async-c", seen, (Wanted){.first = true});
    until(seen, 500);
    // The acknowledgements have no order among the messages.
    double deadline = now() + 15;
    for (int have = 0; have < 500 && now() < deadline; nats_Sleep(2))
    {
        pthread_mutex_lock(&acks_lock);
        have = acks;
        pthread_mutex_unlock(&acks_lock);
    }
    bool in_order = true;
    for (int n = 0; n < 500; n++)
    {
        snprintf(text, sizeof text, "%d", n);
        in_order = in_order && !strcmp(text, seen->texts[seen->count - 500 + n]);
    }
    closed(sc);
    printf("{\"errors\": [%s], \"guids\": %d, \"in_order\": %s}\n", ack_errors ? "true" : "", acks, in_order ? "true" : "false");
}

static void starts(void)
{
    stanConnection *sc = connected("c-starts");
    const char *words[] = {"1", "2", "3", "4", "5"};
    for (int n = 0; n < 5; n++)
        publish(sc, "starts", words[n]);
    struct
    {
        const char *name;
        Wanted wanted;
        int number;
    } ways[] = {
        {"first", {.first = true}, 5},
        {"last", {.last = true}, 1},
        {"sequence", {.sequence = 3}, 3},
        {"time", {.delta = 3600000}, 5},
    };
    printf("{");
    for (int n = 0; n < 4; n++)
    {
        Seen *seen = nothing();
        stanSubscription *sub = subscribe(sc, "starts", seen, ways[n].wanted);
        until(seen, ways[n].number);
        check("unsubscribe", stanSubscription_Unsubscribe(sub));
        numbers(ways[n].name, seen, 0, seen->count);
        printf(", ");
    }
    Seen *seen = nothing();
    subscribe(sc, "starts", seen, (Wanted){0});
    publish(sc, "starts", "6");
    until(seen, 1);
    closed(sc);
    numbers("new", seen, 0, seen->count);
    printf("}\n");
}

static void redelivery(void)
{
    stanConnection *sc = connected("c-redelivery");
    const char *words[] = {"a", "b", "c"};
    for (int n = 0; n < 3; n++)
        publish(sc, "redelivery", words[n]);
    Seen *seen = nothing();
    Wanted wanted = {.first = true, .manual = true, .ack_wait = 1000, .max_in_flight = 2};
    stanSubscription *sub = subscribe(sc, "redelivery", seen, wanted);
    until(seen, 4);
    check("ack", stanSubscription_AckMsg(sub, seen->messages[0]));
    until(seen, 5);
    printf("{\"first\": [");
    for (int n = 0; n < 4; n++)
        printf("%s[%d, %s]", n ? ", " : "", (int)seen->sequences[n], seen->redelivered[n] ? "true" : "false");
    printf("], \"after\": %d}\n", (int)seen->sequences[4]);
    closed(sc);
}

static void durable(void)
{
    Wanted wanted = {.first = true, .durable = "d"};
    stanConnection *sc = connected("c-durable");
    publish(sc, "durable", "a");
    publish(sc, "durable", "b");
    Seen *one = nothing(), *two = nothing(), *three = nothing();
    stanSubscription *sub = subscribe(sc, "durable", one, wanted);
    until(one, 2);
    nats_Sleep(100);
    check("close", stanSubscription_Close(sub));
    publish(sc, "durable", "c");
    publish(sc, "durable", "d");
    closed(sc);
    sc = connected("c-durable");
    sub = subscribe(sc, "durable", two, wanted);
    until(two, 2);
    nats_Sleep(100);
    check("unsubscribe", stanSubscription_Unsubscribe(sub));
    subscribe(sc, "durable", three, wanted);
    until(three, 4);
    closed(sc);
    printf("{"), numbers("before", one, 0, one->count), printf(", "), numbers("resumed", two, 0, two->count), printf(", ");
    numbers("anew", three, 0, three->count), printf("}\n");
}

static void queue(void)
{
    stanConnection *one = connected("c-queue-1"), *two = connected("c-queue-2");
    Seen *left = nothing(), *right = nothing();
    subscribe(one, "queue", left, (Wanted){.queue = "workers"});
    subscribe(two, "queue", right, (Wanted){.queue = "workers"});
    for (int n = 0; n < 20; n++)
        publish(one, "queue", "x");
    double deadline = now() + 10;
    while (counted(left) + counted(right) < 20 && now() < deadline)
        nats_Sleep(2);
    closed(one);
    closed(two);
    printf("{"), numbers("left", left, 0, left->count), printf(", "), numbers("right", right, 0, right->count), printf("}\n");
}

/* How a burst is shared by five members, each on a connection of its own, in each of twenty rounds. */
static void burst(void)
{
    enum { MEMBERS = 5, COUNT = 2048, ROUNDS = 20 };
    stanConnection *members[MEMBERS], *publisher = connected("c-burst");
    char name[32];
    for (int n = 0; n < MEMBERS; n++)
    {
        snprintf(name, sizeof name, "c-burst-%d", n);
        members[n] = connected(name);
    }
    printf("{\"shares\": [");
    for (int round = 0; round < ROUNDS; round++)
    {
        Seen *seen[MEMBERS];
        stanSubscription *subs[MEMBERS];
        snprintf(name, sizeof name, "burst-%d", round);
        for (int n = 0; n < MEMBERS; n++)
            subs[n] = subscribe(members[n], name, seen[n] = nothing(), (Wanted){.queue = "workers"});
        for (int n = 0; n < COUNT; n++)
            check("publish", stanConnection_PublishAsync(publisher, name, "x", 1, NULL, NULL));
        double deadline = now() + 15;
        for (int have = 0; have < COUNT && now() < deadline; nats_Sleep(2))
        {
            have = 0;
            for (int n = 0; n < MEMBERS; n++)
                have += counted(seen[n]);
        }
        printf(round ? ", [" : "[");
        for (int n = 0; n < MEMBERS; n++)
        {
            printf(n ? ", %d" : "%d", counted(seen[n]));
            check("unsubscribe", stanSubscription_Unsubscribe(subs[n]));
        }
        printf("]");
    }
    printf("]}\n");
}

static void durable_queue(void)
{
    Wanted wanted = {.first = true, .durable = "d", .queue = "workers"};
    stanConnection *one = connected("c-dq-1");
    const char *words[] = {"a", "b", "c"};
    for (int n = 0; n < 3; n++)
        publish(one, "dq", words[n]);
    Seen *first = nothing(), *second = nothing();
    subscribe(one, "dq", first, wanted);
    until(first, 3);
    nats_Sleep(100);
    closed(one);
    stanConnection *two = connected("c-dq-2");
    publish(two, "dq", "d");
    subscribe(two, "dq", second, wanted);
    until(second, 1);
    closed(two);
    printf("{"), numbers("first", first, 0, first->count), printf(", "), numbers("second", second, 0, second->count), printf("}\n");
}

static void duplicate(void)
{
    stanConnection *sc = connected("c-twin"), *twin = NULL;
    natsStatus status = try_connect(&twin, "c-twin", NULL);
    printf("{\"error\": \"%s\"}\n", status == NATS_OK ? "" : said(status));
    closed(sc);
}

static void refused(void)
{
    stanConnection *sc = connected("c-refused"), *bad = NULL;
    stanSubscription *sub = NULL;
    natsStatus status = stanConnection_Publish(sc, "foo/bar", "x", 1);
    printf("{\"publish\": \"%s\", ", said(status));
    status = try_subscribe(&sub, sc, "a.*", nothing(), (Wanted){0});
    printf("\"subscribe\": \"%s\", ", said(status));
    status = try_connect(&bad, "not allowed", NULL);
    printf("\"connect\": \"%s\"}\n", said(status));
    closed(sc);
}

static void large(void)
{
    int size = 900000;
    char *data = malloc((size_t)size);
    memset(data, 'x', (size_t)size);
    stanConnection *sc = connected("c-large");
    check("publish", stanConnection_Publish(sc, "large", data, size));
    Seen *seen = nothing();
    subscribe(sc, "large", seen, (Wanted){.last = true});
    until(seen, 1);
    closed(sc);
    printf("{\"size\": %d}\n", seen->size);
}

static pthread_mutex_t lost_lock = PTHREAD_MUTEX_INITIALIZER;
static char lost_text[200];

static void lost_handler(stanConnection *sc, const char *error, void *closure)
{
    (void)sc, (void)closure;
    pthread_mutex_lock(&lost_lock);
    snprintf(lost_text, sizeof lost_text, "%s", error);
    pthread_mutex_unlock(&lost_lock);
}

static stanConnOptions *patient(int interval, int out)
{
    natsOptions *nats = NULL;
    stanConnOptions *options = NULL;
    check("options", natsOptions_Create(&nats));
    check("wait", natsOptions_SetReconnectWait(nats, 100));
    check("attempts", natsOptions_SetMaxReconnect(nats, 300));
    check("options", stanConnOptions_Create(&options));
    check("nats", stanConnOptions_SetNATSOptions(options, nats));
    check("pings", stanConnOptions_SetPings(options, interval, out));
    check("handler", stanConnOptions_SetConnectionLostHandler(options, lost_handler, NULL));
    natsOptions_Destroy(nats);
    return options;
}

/* Says when it is connected, and waits for a server that has forgotten it. */
static void lost(void)
{
    stanConnection *sc = NULL;
    check("connect", try_connect(&sc, "c-lost", patient(1, 30)));
    printf("connected\n");
    fflush(stdout);
    double deadline = now() + 40;
    bool over = false;
    while (!over && now() < deadline)
    {
        nats_Sleep(10);
        pthread_mutex_lock(&lost_lock);
        over = lost_text[0] != 0;
        pthread_mutex_unlock(&lost_lock);
    }
    printf("{\"error\": \"%s\"}\n", lost_text);
    stanConnection_Destroy(sc);
}

/* Says when it is connected, and goes on over a restart of the server with a file store. */
static void restart(void)
{
    stanConnection *sc = NULL;
    check("connect", try_connect(&sc, "c-restart", patient(5, 80)));
    Seen *seen = nothing();
    seen->acknowledge = true;
    subscribe(sc, "restart", seen, (Wanted){.first = true, .manual = true});
    publish(sc, "restart", "before");
    until(seen, 1);
    printf("connected\n");
    fflush(stdout);
    char line[10];
    if (fgets(line, sizeof line, stdin) == NULL)
        exit(1);
    // A request while the connection is lost waits for it to come back, or fails: once more then.
    natsStatus status = NATS_ERR;
    double deadline = now() + 30;
    while ((status = stanConnection_Publish(sc, "restart", "after", 5)) != NATS_OK && now() < deadline)
        nats_Sleep(100);
    check("publish", status);
    deadline = now() + 15;
    while (strcmp(seen->texts[counted(seen) - 1], "after") && now() < deadline)
        nats_Sleep(2);
    closed(sc);
    printf("{"), numbers("sequences", seen, 0, seen->count), printf(", "), texts("texts", seen), printf("}\n");
}

/* Plain NATS: publishing, wildcards, a queue group, requests. */

static void answer(natsConnection *nc, natsSubscription *sub, natsMsg *message, void *closure)
{
    (void)sub, (void)closure;
    char text[32];
    int size = snprintf(text, sizeof text, "re: %.*s", natsMsg_GetDataLength(message), natsMsg_GetData(message));
    natsConnection_Publish(nc, natsMsg_GetReply(message), text, size);
    natsMsg_Destroy(message);
}

static void plain(void)
{
    natsConnection *one = NULL, *two = NULL;
    natsSubscription *wild = NULL, *service = NULL, *left = NULL, *right = NULL;
    natsMsg *message = NULL, *reply = NULL, *sent = NULL;
    check("connect", natsConnection_ConnectTo(&one, url));
    check("connect", natsConnection_ConnectTo(&two, url));
    check("subscribe", natsConnection_SubscribeSync(&wild, one, "cee.*.>"));
    check("subscribe", natsConnection_Subscribe(&service, one, "cee-service", answer, NULL));
    check("queue", natsConnection_QueueSubscribeSync(&left, one, "cee-work", "group"));
    check("queue", natsConnection_QueueSubscribeSync(&right, one, "cee-work", "group"));
    check("flush", natsConnection_Flush(one));
    check("message", natsMsg_Create(&sent, "cee.a.b", NULL, "hello", 5));
    check("header", natsMsgHeader_Set(sent, "Key", "value"));
    check("publish", natsConnection_PublishMsg(two, sent));
    check("next", natsSubscription_NextMsg(&message, wild, 10000));
    const char *header = NULL;
    check("header", natsMsgHeader_Get(message, "Key", &header));
    check("request", natsConnection_RequestString(&reply, two, "cee-service", "x", 10000));
    natsStatus nobody = natsConnection_RequestString(&sent, two, "cee-nobody", "x", 10000);
    for (int n = 0; n < 100; n++)
        check("publish", natsConnection_PublishString(two, "cee-work", "x"));
    check("flush", natsConnection_Flush(two));
    check("flush", natsConnection_Flush(one));
    uint64_t waiting_left = 0, waiting_right = 0;
    natsSubscription_QueuedMsgs(left, &waiting_left);
    natsSubscription_QueuedMsgs(right, &waiting_right);
    printf("{\"message\": \"%.*s\", \"header\": \"%s\", \"reply\": \"%.*s\", \"nobody\": \"%s\", \"shared\": %d, \"alone\": %s}\n",
           natsMsg_GetDataLength(message), natsMsg_GetData(message), header, natsMsg_GetDataLength(reply),
           natsMsg_GetData(reply), natsStatus_GetText(nobody), (int)(waiting_left + waiting_right),
           waiting_left && waiting_right ? "false" : "true");
    check("drain", natsConnection_Drain(one));
    natsConnection_Close(two);
}

int main(int count, char **words)
{
    if (count != 4)
        return 2;
    url = words[1], cluster = words[2];
    struct
    {
        const char *name;
        void (*play)(void);
    } all[] = {
        {"basic", basic},       {"publish_async", publish_async}, {"starts", starts},       {"redelivery", redelivery},
        {"durable", durable},   {"queue", queue},                 {"duplicate", duplicate}, {"durable_queue", durable_queue},
        {"refused", refused},   {"large", large},                 {"lost", lost},           {"restart", restart},
        {"plain", plain},       {"burst", burst},
    };
    alarm(60);
    for (size_t n = 0; n < sizeof all / sizeof *all; n++)
        if (!strcmp(all[n].name, words[3]))
        {
            all[n].play();
            fflush(stdout);
            // The library's threads need not be waited for.
            _exit(0);
        }
    fprintf(stderr, "no scenario %s\n", words[3]);
    return 2;
}
