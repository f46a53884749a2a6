# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The compiled kernels; `kernels.pyi` documents the functions.

A batch takes some microseconds, so the interpreter lock is kept. A pointer moves only after the distance to its end was
checked, as an unsigned number; positions from a table are checked against the buffer before they are used.
"""

from cpython.buffer cimport PyBUF_ND, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from stantools.nats._names cimport number_of
from stantools.nats.kernels cimport Names
from stantools.format._bytes cimport Polynomial, crc_of, multiply_from, put_varint, store32
from stantools.format._fields cimport same_bytes, varint_size

import numpy as np

from broker.record_buffer import Payloads, MessageRecordBuffer
from broker.streaming.publishes.columns import ChannelPublishes, PublishColumns, AckRun, PublishStop


cdef enum:
    # Members of columns.Status.
    GOOD = 0
    FULL = 1
    UNDECODABLE = 2
    NO_GUID = 3
    UNKNOWN_CLIENT = 4
    UNKNOWN_CHANNEL = 5
    WRONG_SUBJECT = 6

    # Columns of the table of frames.
    FRAME_SUBJECT = 0
    FRAME_SUBJECT_SIZE = 1
    FRAME_REPLY = 2
    FRAME_REPLY_SIZE = 3
    FRAME_HEADER_SIZE = 4
    FRAME_PAYLOAD = 5
    FRAME_PAYLOAD_SIZE = 6

    # Columns of the table of publishes.
    CLIENT = 0
    CHANNEL = 1
    GUID = 2
    GUID_SIZE = 3
    REPLY = 4
    REPLY_SIZE = 5
    DATA = 6
    DATA_SIZE = 7

    WIDTH = 8  # of both

    CLIENT_FIELD = 1
    GUID_FIELD = 2
    SUBJECT_FIELD = 3
    REPLY_FIELD = 4
    DATA_FIELD = 5
    CONNECTION_FIELD = 6
    SHA256_FIELD = 10
    ACK_SUBJECT_FIELD = 1
    ACK_SEQUENCE_FIELD = 2

    LONGEST_LENGTH = 5
    LONGEST_VARINT = 10
    HEADER_SIZE = 8

cdef tuple STATUSES = tuple(PublishStop)
cdef object INT32 = np.dtype(np.int32)
cdef object INT64 = np.dtype(np.int64)
cdef object UINT32 = np.dtype(np.uint32)
cdef object UINT64 = np.dtype(np.uint64)
cdef object empty = np.empty
# Creates a named tuple without a call of Python code: each single message needs one.
cdef object named = tuple.__new__


cdef class Held:
    """A buffer, held during a call."""

    cdef Py_buffer buffer
    cdef bint held

    def __cinit__(self, item, int flags):
        PyObject_GetBuffer(item, &self.buffer, flags)
        self.held = True

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.buffer)


cdef Held hold_bytes(item):
    return Held(item, PyBUF_SIMPLE)


cdef Held hold_table(item, int flags):
    """A table of `WIDTH` columns of 32 bits."""
    cdef Held held = Held(item, PyBUF_ND | flags)
    if held.buffer.ndim != 2 or held.buffer.shape[1] != WIDTH or held.buffer.itemsize != 4:
        raise ValueError(f"this is no table of {WIDTH} columns")
    return held


cdef Held hold_column(item, int width, int flags):
    """An array of numbers of `width` bytes."""
    cdef Held held = Held(item, PyBUF_ND | flags)
    if held.buffer.ndim != 1 or held.buffer.itemsize != width:
        raise ValueError(f"this is no array of numbers of {width} bytes")
    return held


cdef Held hold_frames(item, int64_t begin, int64_t end):
    cdef Held held = hold_table(item, 0)
    check_rows(begin, end, held.buffer.shape[0])
    return held


cdef int check_rows(int64_t begin, int64_t end, int64_t rows) except -1:
    if not 0 <= begin <= end <= rows:
        raise ValueError(f"rows {begin} to {end} of {rows}")
    return 0


cdef inline bint is_inside(int64_t start, int64_t size, int64_t limit) noexcept nogil:
    return size == 0 or (start >= 0 and 0 < size <= limit - start)


cdef inline int check_frame(const int32_t* frame, int64_t limit) except -1:
    if (
        not is_inside(frame[FRAME_PAYLOAD], frame[FRAME_PAYLOAD_SIZE], limit)
        or not is_inside(frame[FRAME_REPLY], frame[FRAME_REPLY_SIZE], limit)
        or not 0 <= frame[FRAME_HEADER_SIZE] <= frame[FRAME_PAYLOAD_SIZE]
    ):
        raise ValueError(f"a frame lies outside of {limit} bytes")
    return 0


cdef inline const uint8_t* read_varint(
    const uint8_t* p, const uint8_t* end, int longest, uint64_t* value
) noexcept nogil:
    """Reads a varint of at most `longest` bytes; NULL if it is invalid."""
    cdef int i
    cdef uint8_t byte
    value[0] = 0
    for i in range(longest):
        if p == end:
            return NULL
        byte = p[0]
        p += 1
        if i == LONGEST_VARINT - 1 and byte > 1:
            return NULL
        value[0] |= <uint64_t>(byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return p
    return NULL


cdef struct Field:
    uint32_t number
    int wire
    uint64_t value  # value of a varint, else the size
    const uint8_t* start


cdef inline const uint8_t* read_field(const uint8_t* p, const uint8_t* end, Field* field) noexcept nogil:
    """Reads a field. Returns the start of the next one, NULL if the general decoder must decide."""
    cdef uint32_t tag = p[0]
    p += 1
    if tag >= 0x80:
        if p == end or p[0] >= 0x80:
            return NULL
        tag = (tag & 0x7F) | <uint32_t>p[0] << 7
        p += 1
    field.number = tag >> 3
    field.wire = tag & 7
    if field.number == 0:
        return NULL
    if field.wire == 2:
        if p != end and p[0] < 0x80:
            field.value = p[0]
            p += 1
        else:
            p = read_varint(p, end, LONGEST_LENGTH, &field.value)
    elif field.wire == 0:
        field.start = read_varint(p, end, LONGEST_VARINT, &field.value)
        return field.start
    elif field.wire == 1:
        field.value = 8
    elif field.wire == 5:
        field.value = 4
    else:
        return NULL
    if p == NULL or field.value > <size_t>(end - p):
        return NULL
    field.start = p
    return p + field.value


cdef struct Text:
    const uint8_t* start
    uint32_t size


cdef inline bint read_publish(const uint8_t* p, const uint8_t* end, Text* fields) noexcept nogil:
    """Reads the fields 1 to 6 of a PubMsg; False if the general decoder must decide."""
    cdef Field field
    cdef int i
    for i in range(1, CONNECTION_FIELD + 1):
        fields[i].start = NULL
        fields[i].size = 0
    while p != end:
        p = read_field(p, end, &field)
        if p == NULL:
            return False
        if field.number <= CONNECTION_FIELD or field.number == SHA256_FIELD:
            if field.wire != 2:
                return False
            if field.number <= CONNECTION_FIELD:
                fields[field.number].start = field.start
                fields[field.number].size = <uint32_t>field.value
    return True


cdef inline bint is_same(const Text* a, const Text* b) noexcept nogil:
    return a.size == b.size and same_bytes(a.start, b.start, a.size)


cdef inline Text channel_of(const uint8_t* base, const int32_t* frame, int64_t prefix) noexcept nogil:
    """The NATS subject after a prefix."""
    cdef Text name
    name.size = <uint32_t>max(frame[FRAME_SUBJECT_SIZE] - prefix, 0)
    name.start = base + (frame[FRAME_SUBJECT] + prefix if name.size else 0)
    return name


cdef class Lookup:
    """Numbers of names; caches the last name."""

    cdef Names names
    cdef Text last
    cdef int32_t number

    def __cinit__(self, Names names not None):
        self.names = names
        self.number = -1

    cdef inline int32_t find(self, const Text* name) noexcept:
        if self.number < 0 or not is_same(name, &self.last):
            self.number = number_of(&self.names.table, name.start if name.size else <const uint8_t*>b"", name.size)
            self.last = name[0]
        return self.number


def read_publishes(
    buffer,
    frames,
    int64_t begin,
    int64_t end,
    Names clients not None,
    Names connections not None,
    Names channels not None,
    table,
    int64_t prefix=-1,
):
    cdef Held held = hold_bytes(buffer)
    cdef Held held_frames = hold_frames(frames, begin, end)
    cdef Held held_table = hold_table(table, PyBUF_WRITABLE)
    cdef const uint8_t* base = <const uint8_t*>held.buffer.buf
    cdef int64_t limit = held.buffer.len, capacity = held_table.buffer.shape[0], count = 0, size = 0, acks_size = 0
    cdef const int32_t* first = <const int32_t*>held_frames.buffer.buf + WIDTH * begin
    cdef const int32_t* frame = first
    cdef int32_t* rows = <int32_t*>held_table.buffer.buf
    cdef int32_t* row = rows
    cdef Lookup client_ids = Lookup(clients)
    cdef Lookup connection_ids = Lookup(connections)
    cdef Lookup subjects = Lookup(channels)
    cdef Text fields[CONNECTION_FIELD + 1]
    cdef const uint8_t* payload
    cdef int32_t client, channel, payload_size
    cdef Text name
    cdef bint one_channel = True
    cdef int status = GOOD
    while count < end - begin:
        if count == capacity:
            status = FULL
            break
        check_frame(frame, limit)
        if prefix >= 0 and not is_inside(frame[FRAME_SUBJECT], frame[FRAME_SUBJECT_SIZE], limit):
            raise ValueError(f"a subject lies outside of {limit} bytes")
        payload_size = frame[FRAME_PAYLOAD_SIZE] - frame[FRAME_HEADER_SIZE]
        payload = base + (frame[FRAME_PAYLOAD] + frame[FRAME_HEADER_SIZE] if payload_size else 0)
        if not read_publish(payload, payload + payload_size, fields):
            status = UNDECODABLE
            break
        if fields[GUID_FIELD].size == 0:
            status = NO_GUID
            break
        if fields[CONNECTION_FIELD].size:
            client = connection_ids.find(&fields[CONNECTION_FIELD])
        else:
            client = client_ids.find(&fields[CLIENT_FIELD])
        if client < 0:
            status = UNKNOWN_CLIENT
            break
        if prefix >= 0:
            name = channel_of(base, frame, prefix)
            if not is_same(&name, &fields[SUBJECT_FIELD]):
                status = WRONG_SUBJECT
                break
        channel = subjects.find(&fields[SUBJECT_FIELD])
        if channel < 0:
            status = UNKNOWN_CHANNEL
            break
        one_channel = one_channel and channel == (rows[CHANNEL] if count else channel)
        row[CLIENT] = client
        row[CHANNEL] = channel
        row[GUID] = <int32_t>(fields[GUID_FIELD].start - base)
        row[GUID_SIZE] = <int32_t>fields[GUID_FIELD].size
        row[REPLY] = <int32_t>(fields[REPLY_FIELD].start - base) if fields[REPLY_FIELD].size else 0
        row[REPLY_SIZE] = <int32_t>fields[REPLY_FIELD].size
        row[DATA] = <int32_t>(fields[DATA_FIELD].start - base) if fields[DATA_FIELD].size else 0
        row[DATA_SIZE] = <int32_t>fields[DATA_FIELD].size
        acks_size += 1 + varint_size(fields[GUID_FIELD].size) + fields[GUID_FIELD].size
        size += payload_size
        count += 1
        frame += WIDTH
        row += WIDTH
    cdef list singles = []
    cdef list groups = groups_of(rows, count, one_channel, singles)
    cdef object acks = acks_of(base, rows, count, acks_size)
    return named(
        PublishColumns, (count, STATUSES[status], groups, singles, acks, runs_of(base, first, count), size)
    )


cdef object ZERO = np.zeros(1, INT64)
cdef object last_size = np.zeros(1, UINT32)
cdef int64_t last_length = 0


cdef object lone_size(int64_t length):
    """A column of one size; caches the last one, as clients have ids of one length."""
    global last_size, last_length
    if length != last_length:
        last_size, last_length = np.array([length], UINT32), length
    return last_size


cdef object acks_of(const uint8_t* base, const int32_t* row, int64_t count, int64_t size):
    """The encoded PubAcks of the rows, `size` bytes in all."""
    cdef bytes data = PyBytes_FromStringAndSize(NULL, size)
    cdef uint8_t* begin = <uint8_t*>PyBytes_AS_STRING(data)
    cdef uint8_t* p = begin
    cdef uint8_t* ack
    cdef object starts, sizes
    cdef Held held_starts
    cdef Held held_sizes
    cdef int64_t* start
    cdef uint32_t* length
    cdef int64_t i
    if count == 1:
        p[0] = 0x0A
        memcpy(put_varint(p + 1, <uint64_t>row[GUID_SIZE]), base + row[GUID], row[GUID_SIZE])
        return Payloads(data, ZERO, lone_size(size))
    starts, sizes = empty(count, INT64), empty(count, UINT32)
    held_starts = hold_column(starts, 8, PyBUF_WRITABLE)
    held_sizes = hold_column(sizes, 4, PyBUF_WRITABLE)
    start = <int64_t*>held_starts.buffer.buf
    length = <uint32_t*>held_sizes.buffer.buf
    for i in range(count):
        ack = p
        p[0] = 0x0A
        p = put_varint(p + 1, <uint64_t>row[GUID_SIZE])
        memcpy(p, base + row[GUID], row[GUID_SIZE])
        p += row[GUID_SIZE]
        start[i] = ack - begin
        length[i] = <uint32_t>(p - ack)
        row += WIDTH
    return Payloads(data, starts, sizes)


cdef list runs_of(const uint8_t* base, const int32_t* frame, int64_t count):
    cdef list runs = []
    cdef Text reply
    cdef Text last
    cdef int64_t i, begin = 0
    for i in range(count):
        reply.size = <uint32_t>frame[FRAME_REPLY_SIZE]
        reply.start = base + (frame[FRAME_REPLY] if reply.size else 0)
        if i == 0:
            last = reply
        elif not is_same(&reply, &last):
            runs.append(named(AckRun, (last.start[:last.size], begin, i)))
            begin = i
            last = reply
        frame += WIDTH
    if count:
        runs.append(named(AckRun, (last.start[:last.size], begin, count)))
    return runs


cdef list groups_of(const int32_t* table, int64_t count, bint one_channel, list singles):
    """Sorts the rows by channel and keeps the order within a channel; single rows of a channel go to `singles`."""
    cdef object rows
    cdef Held held
    cdef int32_t* out
    cdef int32_t* scratch
    cdef int32_t* slot  # group by channel: a hash table; -1 is a free slot
    cdef int32_t* group  # of each row
    cdef int32_t* channel  # of each group
    cdef int32_t* place  # where the next row of each group goes
    cdef int64_t i, begin, groups = 0, slots = 2
    cdef uint32_t k
    cdef list found = []
    if count == 1:
        singles.append((table[CHANNEL], 0))
    if count <= 1:
        return found
    rows = empty(count, INT32)
    held = hold_column(rows, 4, PyBUF_WRITABLE)
    out = <int32_t*>held.buffer.buf
    if one_channel:
        for i in range(count):
            out[i] = <int32_t>i
        found.append(named(ChannelPublishes, (table[CHANNEL], rows)))
        return found
    while slots < 2 * count:
        slots *= 2
    scratch = <int32_t*>malloc((slots + 3 * count) * sizeof(int32_t))
    if scratch == NULL:
        raise MemoryError
    try:
        slot = scratch
        group = slot + slots
        channel = group + count
        place = channel + count
        for i in range(slots):
            slot[i] = -1
        for i in range(count):
            # Clients do not choose the channel numbers: a weak hash is safe.
            k = (<uint32_t>table[WIDTH * i + CHANNEL] * <uint32_t>2654435761) & <uint32_t>(slots - 1)
            while slot[k] >= 0 and channel[slot[k]] != table[WIDTH * i + CHANNEL]:
                k = (k + 1) & <uint32_t>(slots - 1)
            if slot[k] < 0:
                slot[k] = <int32_t>groups
                channel[groups] = table[WIDTH * i + CHANNEL]
                place[groups] = 0
                groups += 1
            group[i] = slot[k]
            place[slot[k]] += 1
        begin = 0
        for i in range(groups):
            if place[i] == 1:
                place[i] = -1
                continue
            found.append(named(ChannelPublishes, (channel[i], rows[begin:begin + place[i]])))
            begin += place[i]
            place[i] = <int32_t>begin - place[i]
        for i in range(count):
            if place[group[i]] < 0:
                singles.append((channel[group[i]], i))
                continue
            out[place[group[i]]] = <int32_t>i
            place[group[i]] += 1
    finally:
        free(scratch)
    return found


cdef class Checksum:
    """The tables of a CRC, held while in use."""

    cdef object crc
    cdef const uint32_t[:, ::1] tables
    cdef const uint64_t[::1] folding
    cdef Polynomial polynomial

    def __cinit__(self, crc):
        self.crc = crc
        self.tables = crc.tables
        self.folding = crc.folding
        if self.tables.shape[0] != 16 or self.tables.shape[1] != 256 or self.folding.shape[0] != 14:
            raise ValueError("these are not the tables of a CRC")
        self.polynomial.tables = &self.tables[0, 0]
        self.polynomial.folding = &self.folding[0]
        self.polynomial.multiply_from = multiply_from()


cdef Checksum last_checksum = None


cdef Checksum checksum(crc):
    """Caches the last CRC: a server uses a single one."""
    global last_checksum
    if last_checksum is None or last_checksum.crc is not crc:
        last_checksum = Checksum(crc)
    return last_checksum


cdef inline uint8_t* put_text(uint8_t* p, uint8_t tag, const uint8_t* text, uint32_t size) noexcept nogil:
    if size == 0:
        return p
    p[0] = tag
    p = put_varint(p + 1, size)
    memcpy(p, text, size)
    return p + size


cdef inline uint64_t text_size(uint32_t size) noexcept nogil:
    return 1 + varint_size(size) + size if size else 0


# Each synchronous client causes a block of one message: such blocks share their equal columns.
cdef object LONE_START = np.array([HEADER_SIZE], INT64)
cdef object last_timestamp = np.zeros(1, INT64)
cdef int64_t last_time = 0


cdef object lone_timestamp(int64_t time):
    """A column of one timestamp; caches the last one, as a commit has few."""
    global last_timestamp, last_time
    if time != last_time:
        last_timestamp, last_time = np.array([time], INT64), time
    return last_timestamp


cdef inline Text text_of(bytes name) noexcept:
    cdef Text text
    text.start = <const uint8_t*>PyBytes_AS_STRING(name)
    text.size = <uint32_t>PyBytes_GET_SIZE(name)
    return text


cdef struct Common:
    # Common parts of a channel's messages: its name, and the encoded timestamp.
    Text name
    uint8_t tail[16]
    size_t tail_size


cdef inline Common common_of(bytes name, int64_t timestamp) noexcept:
    cdef Common common
    common.name = text_of(name)
    common.tail_size = 0
    if timestamp:
        common.tail[0] = 0x28
        common.tail_size = <size_t>(put_varint(common.tail + 1, <uint64_t>timestamp) - common.tail)
    return common


cdef inline const int32_t* row_of(const int32_t* cells, int64_t rows, int64_t number) except NULL:
    if not 0 <= number < rows:
        raise ValueError("a row lies outside of the table")
    return cells + WIDTH * number


cdef inline uint64_t message_size(
    const int32_t* row, int64_t limit, const Common* common, uint64_t sequence
) except? 0:
    cdef uint64_t size
    if not is_inside(row[DATA], row[DATA_SIZE], limit) or not is_inside(row[REPLY], row[REPLY_SIZE], limit):
        raise ValueError(f"a row points out of {limit} bytes")
    size = text_size(common.name.size) + common.tail_size
    size += text_size(<uint32_t>row[REPLY_SIZE]) + text_size(<uint32_t>row[DATA_SIZE])
    if sequence:
        size += 1 + varint_size(sequence)
    if size > <uint32_t>-1:
        raise ValueError(f"a message of {size} bytes does not fit into a record")
    return size


cdef inline void put_message(
    uint8_t* p, const uint8_t* base, const int32_t* row, const Common* common, uint64_t sequence
) noexcept nogil:
    if sequence:
        p[0] = 0x08
        p = put_varint(p + 1, sequence)
    p = put_text(p, 0x12, common.name.start, common.name.size)
    p = put_text(p, 0x1A, base + row[REPLY], <uint32_t>row[REPLY_SIZE])
    p = put_text(p, 0x22, base + row[DATA], <uint32_t>row[DATA_SIZE])
    memcpy(p, common.tail, common.tail_size)


def encode_records(
    buffer, table, rows, bytes name not None, uint64_t first_sequence, int64_t timestamp, crc
):
    cdef Held held = hold_bytes(buffer)
    cdef Held held_table = hold_table(table, 0)
    cdef Held held_rows = hold_column(rows, 4, 0)
    cdef const uint8_t* base = <const uint8_t*>held.buffer.buf
    cdef const int32_t* cells = <const int32_t*>held_table.buffer.buf
    cdef const int32_t* chosen = <const int32_t*>held_rows.buffer.buf
    cdef const int32_t* row
    cdef int64_t limit = held.buffer.len, count = held_rows.buffer.len // 4, table_rows = held_table.buffer.shape[0], i
    cdef Checksum checker = None if crc is None else checksum(crc)
    cdef Common common = common_of(name, timestamp)
    cdef uint64_t size, total = 0, sequence = first_sequence
    cdef bytes data
    cdef uint8_t* begin
    cdef uint8_t* record
    if sequence > <uint64_t>-1 - <uint64_t>count:
        raise ValueError(f"sequence {sequence} is out of range")
    if count == 1:
        starts, timestamps = LONE_START, lone_timestamp(timestamp)
    else:
        starts, timestamps = empty(count, INT64), empty(count, INT64)
    sizes = empty(count, UINT32)
    sequences = empty(count, UINT64)
    cdef Held held_starts = hold_column(starts, 8, PyBUF_WRITABLE)
    cdef Held held_sizes = hold_column(sizes, 4, PyBUF_WRITABLE)
    cdef Held held_sequences = hold_column(sequences, 8, PyBUF_WRITABLE)
    cdef Held held_timestamps = hold_column(timestamps, 8, PyBUF_WRITABLE)
    cdef int64_t* start_of = <int64_t*>held_starts.buffer.buf
    cdef uint32_t* size_of = <uint32_t*>held_sizes.buffer.buf
    cdef uint64_t* sequence_of = <uint64_t*>held_sequences.buffer.buf
    cdef int64_t* timestamp_of = <int64_t*>held_timestamps.buffer.buf
    for i in range(count):
        row = row_of(cells, table_rows, chosen[i])
        size = message_size(row, limit, &common, sequence)
        start_of[i] = <int64_t>total + HEADER_SIZE
        size_of[i] = <uint32_t>size
        sequence_of[i] = sequence
        timestamp_of[i] = timestamp
        total += HEADER_SIZE + size
        sequence += 1
    data = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>total)
    begin = <uint8_t*>PyBytes_AS_STRING(data)
    for i in range(count):
        record = begin + start_of[i]
        put_message(record, base, cells + WIDTH * <int64_t>chosen[i], &common, sequence_of[i])
        store32(record - HEADER_SIZE, size_of[i])
        store32(record - HEADER_SIZE + 4, crc_of(record, size_of[i], &checker.polynomial) if checker is not None else 0)
    return MessageRecordBuffer(data, starts, sizes, sequences, timestamps, <int64_t>total - HEADER_SIZE * count)


def encode_lone_records(buffer, table, list wanted not None, crc):
    cdef Held held = hold_bytes(buffer)
    cdef Held held_table = hold_table(table, 0)
    cdef const uint8_t* base = <const uint8_t*>held.buffer.buf
    cdef int64_t limit = held.buffer.len
    cdef const int32_t* row
    cdef Checksum checker = None if crc is None else checksum(crc)
    cdef Common common
    cdef uint64_t size, sequence
    cdef uint8_t* record
    cdef bytes name, data
    cdef object number, numbered, timestamp
    cdef list found = []
    for number, name, numbered, timestamp in wanted:
        try:
            sequence = numbered
            common = common_of(name, timestamp)
        except OverflowError:
            sequence = <uint64_t>-1
        if sequence == <uint64_t>-1:
            raise ValueError(f"sequence {numbered} or timestamp {timestamp} is out of range")
        row = row_of(<const int32_t*>held_table.buffer.buf, held_table.buffer.shape[0], number)
        size = message_size(row, limit, &common, sequence)
        data = PyBytes_FromStringAndSize(NULL, HEADER_SIZE + <Py_ssize_t>size)
        record = <uint8_t*>PyBytes_AS_STRING(data)
        put_message(record + HEADER_SIZE, base, row, &common, sequence)
        store32(record, <uint32_t>size)
        store32(record + 4, crc_of(record + HEADER_SIZE, size, &checker.polynomial) if checker is not None else 0)
        found.append((data, numbered, timestamp))
    return found


cdef inline bint read_ack(const uint8_t* base, const int32_t* frame, const Text* wanted, uint64_t* sequence) noexcept nogil:
    """Reads the sequence of an Ack of this channel; False if the general decoder must decide."""
    cdef int32_t size = frame[FRAME_PAYLOAD_SIZE] - frame[FRAME_HEADER_SIZE]
    cdef const uint8_t* p = base + (frame[FRAME_PAYLOAD] + frame[FRAME_HEADER_SIZE] if size else 0)
    cdef const uint8_t* end = p + size
    cdef Field field
    cdef Text subject
    subject.start = wanted.start
    subject.size = 0
    sequence[0] = 0
    while p != end:
        p = read_field(p, end, &field)
        if p == NULL:
            return False
        if field.number == ACK_SUBJECT_FIELD:
            if field.wire != 2:
                return False
            subject.start = field.start
            subject.size = <uint32_t>field.value
        elif field.number == ACK_SEQUENCE_FIELD:
            if field.wire != 0:
                return False
            sequence[0] = field.value
    return is_same(&subject, wanted)


def read_lone_acks(buffer, frames, list rows not None, list channels not None):
    cdef Held held = hold_bytes(buffer)
    cdef Held held_frames = hold_table(frames, 0)
    cdef const uint8_t* base = <const uint8_t*>held.buffer.buf
    cdef const int32_t* frame
    cdef int64_t row
    cdef Py_ssize_t i
    cdef uint64_t sequence
    cdef Text wanted
    cdef list sequences = []
    if len(rows) != len(channels):
        raise ValueError(f"{len(rows)} rows, {len(channels)} channels")
    for i in range(len(rows)):
        row = rows[i]
        check_rows(row, row + 1, held_frames.buffer.shape[0])
        frame = <const int32_t*>held_frames.buffer.buf + WIDTH * row
        check_frame(frame, held.buffer.len)
        wanted = text_of(<bytes?>channels[i])
        sequences.append(sequence if read_ack(base, frame, &wanted, &sequence) else None)
    return sequences


def read_acks(buffer, frames, int64_t begin, int64_t end, bytes channel not None):
    cdef Held held = hold_bytes(buffer)
    cdef Held held_frames = hold_frames(frames, begin, end)
    cdef const uint8_t* base = <const uint8_t*>held.buffer.buf
    cdef const int32_t* frame = <const int32_t*>held_frames.buffer.buf + WIDTH * begin
    cdef int64_t limit = held.buffer.len, i
    cdef uint64_t sequence
    cdef Text wanted = text_of(channel)
    cdef list sequences = []
    for i in range(begin, end):
        check_frame(frame, limit)
        if not read_ack(base, frame, &wanted, &sequence):
            return sequences, i
        sequences.append(sequence)
        frame += WIDTH
    return sequences, end
