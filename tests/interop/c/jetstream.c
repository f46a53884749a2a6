/* What the C client sees of JetStream: `jetstream URL`, a line of text on stdout for each thing that it did. */
#include <nats.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT(msg) natsMsg_GetDataLength(msg), natsMsg_GetData(msg)
#define WAIT 30000

static natsConnection *nc;
static jsCtx *js;

/* Says what became of a call: its status, and the error code of the server. */
static natsStatus became(const char *what, natsStatus status, jsErrCode code)
{
    printf("%s: %s %d\n", what, natsStatus_GetText(status), (int)code);
    return status;
}

static void check(const char *what, natsStatus status)
{
    if (status == NATS_OK)
        return;
    fprintf(stderr, "%s: %s\n%s\n", what, natsStatus_GetText(status), nats_GetLastError(NULL));
    exit(1);
}

static void stream(const char *name, const char *subject, bool direct)
{
    jsStreamConfig config;
    jsStreamConfig_Init(&config);
    config.Name = name;
    config.Subjects = &subject;
    config.SubjectsLen = 1;
    config.AllowDirect = direct;
    check(name, js_AddStream(NULL, js, &config, NULL, NULL));
}

static void state(const char *name)
{
    jsStreamInfo *info = NULL;
    check("info", js_GetStreamInfo(&info, js, name, NULL, NULL));
    printf("%s: %d messages, %d to %d, %d gone, %d subjects\n", name, (int)info->State.Msgs, (int)info->State.FirstSeq,
           (int)info->State.LastSeq, (int)info->State.NumDeleted, (int)info->State.NumSubjects);
    jsStreamInfo_Destroy(info);
}

static void publish(const char *what, const char *subject, const char *text, jsPubOptions *options)
{
    jsPubAck *ack = NULL;
    jsErrCode code = 0;
    natsStatus status = js_Publish(&ack, js, subject, text, (int)strlen(text), options, &code);
    if (became(what, status, code) == NATS_OK)
        printf("  %s %d %s\n", ack->Stream, (int)ack->Sequence, ack->Duplicate ? "again" : "new");
    jsPubAck_Destroy(ack);
}

static void show(natsMsg *msg)
{
    jsMsgMetaData *meta = NULL;
    check("metadata", natsMsg_GetMetaData(&meta, msg));
    printf("  %s %.*s: %d of the stream, %d of the consumer, delivery %d, %d to come\n", natsMsg_GetSubject(msg), TEXT(msg),
           (int)meta->Sequence.Stream, (int)meta->Sequence.Consumer, (int)meta->NumDelivered, (int)meta->NumPending);
    jsMsgMetaData_Destroy(meta);
}

static void publishing(void)
{
    jsPubOptions options;
    stream("P", "p.>", true);
    publish("plain", "p.a", "1", NULL);
    jsPubOptions_Init(&options);
    options.MsgId = "id";
    publish("with an id", "p.a", "2", &options);
    publish("with the same", "p.a", "2", &options);
    jsPubOptions_Init(&options);
    options.ExpectStream = "Q";
    publish("another stream", "p.a", "3", &options);
    jsPubOptions_Init(&options);
    options.ExpectLastSeq = 7;
    publish("another sequence", "p.a", "3", &options);
    jsPubOptions_Init(&options);
    options.ExpectLastMsgId = "id";
    publish("the last id", "p.b", "3", &options);
    jsPubOptions_Init(&options);
    options.ExpectNoMessage = true;
    publish("a subject without messages", "p.c", "4", &options);
    publish("a subject with one", "p.c", "5", &options);
    publish("nobody", "nobody", "5", NULL);
    for (int i = 0; i < 1000; i++)
        check("publish", js_PublishAsync(js, "p.many", "x", 1, NULL));
    jsPubOptions_Init(&options);
    options.MaxWait = WAIT;
    became("many under way", js_PublishAsyncComplete(js, &options), 0);
    state("P");
}

static void getting(void)
{
    natsMsg *msg = NULL;
    jsErrCode code = 0;
    jsDirectGetMsgOptions wanted;
    if (became("a message", js_GetMsg(&msg, js, "P", 2, NULL, &code), code) == NATS_OK)
        printf("  %s %.*s\n", natsMsg_GetSubject(msg), TEXT(msg));
    natsMsg_Destroy(msg);
    msg = NULL;
    if (became("the last one", js_GetLastMsg(&msg, js, "P", "p.b", NULL, &code), code) == NATS_OK)
        printf("  %s %.*s\n", natsMsg_GetSubject(msg), TEXT(msg));
    natsMsg_Destroy(msg);
    became("none", js_GetMsg(&msg, js, "P", 5000, NULL, &code), code);
    const char *last[] = {"p.a", "p.none"};
    for (int i = 0; i < 2; i++)
    {
        msg = NULL;
        jsDirectGetMsgOptions_Init(&wanted);
        wanted.LastBySubject = last[i];
        if (became("directly", js_DirectGetMsg(&msg, js, "P", NULL, &wanted), 0) == NATS_OK)
            printf("  %s %d %.*s\n", natsMsg_GetSubject(msg), (int)natsMsg_GetSequence(msg), TEXT(msg));
        natsMsg_Destroy(msg);
    }
    code = 0;
    became("delete", js_DeleteMsg(js, "P", 3, NULL, &code), code);
    became("erase", js_EraseMsg(js, "P", 1, NULL, &code), code);
    became("erase once more", js_EraseMsg(js, "P", 1, NULL, &code), code);
    state("P");
    jsOptions options;
    jsOptions_Init(&options);
    options.Stream.Purge.Subject = "p.many";
    options.Stream.Purge.Keep = 3;
    code = 0;
    became("purge", js_PurgeStream(js, "P", &options, &code), code);
    state("P");
}

static void show_and_acknowledge(natsSubscription *sub, int count)
{
    natsMsgList list;
    jsErrCode code = 0;
    check("fetch", natsSubscription_Fetch(&list, sub, count, WAIT, &code));
    for (int i = 0; i < list.Count; i++)
    {
        show(list.Msgs[i]);
        check("ack", natsMsg_AckSync(list.Msgs[i], NULL, &code));
    }
    natsMsgList_Destroy(&list);
}

static void pulling(void)
{
    natsSubscription *sub = NULL;
    natsMsgList list;
    jsErrCode code = 0;
    char text[16];
    stream("L", "l.>", false);
    for (int i = 0; i < 6; i++)
    {
        snprintf(text, sizeof text, "%d", i);
        publish("fill", i % 2 ? "l.b" : "l.a", text, NULL);
    }
    check("pull", js_PullSubscribe(&sub, js, "l.>", "d", NULL, NULL, &code));
    check("fetch", natsSubscription_Fetch(&list, sub, 4, WAIT, &code));
    for (int i = 0; i < list.Count; i++)
        show(list.Msgs[i]);
    check("ack", natsMsg_AckSync(list.Msgs[0], NULL, &code));
    check("progress", natsMsg_InProgress(list.Msgs[1], NULL));
    check("term", natsMsg_Term(list.Msgs[2], NULL));
    show_and_acknowledge(sub, 2);
    check("nak", natsMsg_Nak(list.Msgs[3], NULL));
    natsMsgList_Destroy(&list);
    show_and_acknowledge(sub, 1);
    became("nothing more", natsSubscription_Fetch(&list, sub, 1, 300, &code), 0);
    jsConsumerInfo *info = NULL;
    check("info", js_GetConsumerInfo(&info, js, "L", "d", NULL, &code));
    printf("d: %d/%d, floor %d/%d, %d unacknowledged, %d left\n", (int)info->Delivered.Consumer, (int)info->Delivered.Stream,
           (int)info->AckFloor.Consumer, (int)info->AckFloor.Stream, (int)info->NumAckPending, (int)info->NumPending);
    jsConsumerInfo_Destroy(info);
    natsSubscription_Destroy(sub);
    became("delete", js_DeleteConsumer(js, "L", "d", NULL, &code), code);
    became("delete once more", js_DeleteConsumer(js, "L", "d", NULL, &code), code);
}

static void pushing(void)
{
    natsSubscription *sub = NULL;
    natsMsg *msg = NULL;
    jsSubOptions options;
    jsErrCode code = 0;
    jsSubOptions_Init(&options);
    options.Ordered = true;
    check("ordered", js_SubscribeSync(&sub, js, "p.>", NULL, &options, &code));
    jsStreamInfo *info = NULL;
    check("info", js_GetStreamInfo(&info, js, "P", NULL, &code));
    for (int i = 0; i < (int)info->State.Msgs; i++)
    {
        check("message", natsSubscription_NextMsg(&msg, sub, WAIT));
        show(msg);
        natsMsg_Destroy(msg);
    }
    jsStreamInfo_Destroy(info);
    natsSubscription_Unsubscribe(sub);
    natsSubscription_Destroy(sub);
    jsSubOptions_Init(&options);
    options.Queue = "workers";
    options.ManualAck = true;
    options.Config.FilterSubject = "l.a";
    check("queue", js_SubscribeSync(&sub, js, "l.a", NULL, &options, &code));
    for (int i = 0; i < 3; i++)
    {
        check("message", natsSubscription_NextMsg(&msg, sub, WAIT));
        show(msg);
        check("ack", natsMsg_AckSync(msg, NULL, &code));
        natsMsg_Destroy(msg);
    }
    natsSubscription_Unsubscribe(sub);
    natsSubscription_Destroy(sub);
}

static void keys(void)
{
    kvConfig config;
    kvStore *kv = NULL;
    kvEntry *entry = NULL;
    kvKeysList names;
    kvEntryList history;
    uint64_t revision = 0;
    kvConfig_Init(&config);
    config.Bucket = "b";
    config.History = 5;
    check("bucket", js_CreateKeyValue(&kv, js, &config));
    became("put", kvStore_PutString(&revision, kv, "k", "one"), 0);
    became("create", kvStore_CreateString(&revision, kv, "k", "two"), 0);
    became("update", kvStore_UpdateString(&revision, kv, "k", "two", 1), 0);
    became("update once more", kvStore_UpdateString(&revision, kv, "k", "three", 1), 0);
    check("get", kvStore_Get(&entry, kv, "k"));
    printf("k: %s, revision %d\n", kvEntry_ValueString(entry), (int)kvEntry_Revision(entry));
    kvEntry_Destroy(entry);
    check("put", kvStore_PutString(&revision, kv, "other", "x"));
    check("delete", kvStore_Delete(kv, "k"));
    became("get what was deleted", kvStore_Get(&entry, kv, "k"), 0);
    became("create anew", kvStore_CreateString(&revision, kv, "k", "four"), 0);
    check("keys", kvStore_Keys(&names, kv, NULL));
    printf("%d keys\n", names.Count);
    kvKeysList_Destroy(&names);
    check("history", kvStore_History(&history, kv, "k", NULL));
    for (int i = 0; i < history.Count; i++)
        printf("  %d %d %s\n", (int)kvEntry_Revision(history.Entries[i]), (int)kvEntry_Operation(history.Entries[i]),
               kvEntry_ValueLen(history.Entries[i]) ? kvEntry_ValueString(history.Entries[i]) : "-");
    kvEntryList_Destroy(&history);
    check("purge", kvStore_Purge(kv, "k", NULL));
    state("KV_b");
    kvStore_Destroy(kv);
    became("delete", js_DeleteKeyValue(js, "b"), 0);
}

int main(int argc, char **argv)
{
    jsAccountInfo *account = NULL;
    jsErrCode code = 0;
    if (argc != 2)
        return 2;
    check("connect", natsConnection_ConnectTo(&nc, argv[1]));
    jsOptions options;
    jsOptions_Init(&options);
    options.Wait = WAIT;
    check("context", natsConnection_JetStream(&js, nc, &options));
    publishing();
    getting();
    pulling();
    pushing();
    keys();
    check("account", js_GetAccountInfo(&account, js, NULL, &code));
    printf("%d streams, at most %d\n", (int)account->Streams, (int)account->Limits.MaxStreams);
    jsAccountInfo_Destroy(account);
    became("delete", js_DeleteStream(js, "L", NULL, &code), code);
    became("delete once more", js_DeleteStream(js, "L", NULL, &code), code);
    jsCtx_Destroy(js);
    natsConnection_Destroy(nc);
    nats_Close();
    return 0;
}
