# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The scan and encode kernels, compiled. `kernels.pyi` has the contract of each function.

Every call releases the interpreter lock while it works. Rules for reading untrusted bytes, which may also change during
the read because a server writes to the file:

- a pointer moves only after the distance to its end was checked, as an unsigned number;
- a size is read once, into a variable, which is then checked and used.

A message in exactly the server's encoding takes a short path; all others go to the general decoder.
"""

from cpython.buffer cimport PyBUF_ND, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy
from posix.unistd cimport pread

from stantools.format._bytes cimport (
    Polynomial, crc_by_tables, crc_of, good_records, load32, load64, multiply_from, put_varint, store32, store64
)
from stantools.format._fields cimport (
    FOREIGN_SUBJECT, UNLIMITED, Channel, Message, any_fields, any_message, any_update, same_bytes, usual_message, varint_size
)
from stantools.format._raft cimport Entry, Published, big_endian, usual_entry, usual_publish

from array import array

from stantools.format import fieldscan
from stantools.format.layout import ScanStop
from stantools.lazy_numpy import np


cdef enum:
    # The longest record of a message sent or acknowledged: a header and two fields of ten bytes, each with its tag.
    LONGEST_FLOW = 30
    # number of records that are encoded without an allocation
    FEW_FLOWS = 8
    # Members of layout.Stop.
    END = 0
    FULL = 1
    SHORT_HEADER = 2
    ZEROS = 3
    DANGLING = 4
    SHORT_PAYLOAD = 5
    BAD_CRC = 6
    BAD_DECODE = 7

    HEADER_SIZE = 8
    INDEX_SIZE = 32
    FILE_HEADER = 4
    # maximum number of ranges of sequences that a call of scan_run reports
    MOST_RANGES = 1024
    # Index records whose CRCs are checked together; they stay in the nearest cache until they are compared.
    CHECKED_AHEAD = 128
    # Bytes of an index per read: they stay in a near cache, and malloc reuses them.
    INDEX_PART = 1 << 16

cdef tuple STOPS = tuple(ScanStop)
cdef int64_t MAX_FIELDS = fieldscan.MAX_FIELDS
cdef size_t FROM = multiply_from()
cdef uint32_t UNTYPED = <uint32_t>-1  # all 32 bits of a header are the size


cdef class Reader:
    """A buffer and a CRC, held for the length of a call."""

    cdef Py_buffer buffer
    cdef bint held
    cdef const uint32_t[:, ::1] tables
    cdef const uint64_t[::1] folding
    cdef const uint8_t* base
    cdef uint64_t size
    cdef Polynomial polynomial
    cdef bint check

    def __cinit__(self, buffer, crc):
        PyObject_GetBuffer(buffer, &self.buffer, PyBUF_SIMPLE)
        self.held = True
        self.base = <const uint8_t*>self.buffer.buf
        self.size = <uint64_t>self.buffer.len
        self.check = crc.check
        self.tables = crc.tables
        self.folding = crc.folding
        if self.tables.shape[0] != 16 or self.tables.shape[1] != 256 or self.folding.shape[0] != 14:
            raise ValueError("these are not the tables of a CRC")
        self.polynomial.tables = &self.tables[0, 0]
        self.polynomial.folding = &self.folding[0]
        self.polynomial.multiply_from = FROM

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.buffer)

    cdef uint64_t end(self, int64_t start, int64_t limit) except? 0:
        """The limit within the buffer."""
        if start < 0 or limit < 0:
            raise ValueError(f"start {start} or limit {limit} is negative")
        return min(<uint64_t>limit, self.size)


def checksum(buffer, crc, bint by_tables=False):
    """CRC of a whole buffer, as the kernels compute it; `by_tables`: as on processors without multiplication."""
    cdef Reader reader = Reader(buffer, crc)
    cdef uint32_t value
    with nogil:
        if by_tables:
            value = crc_by_tables(reader.base, reader.size, reader.polynomial.tables)
        else:
            value = crc_of(reader.base, reader.size, &reader.polynomial)
    return value


cdef inline bint checked_index_record(
    const uint8_t* p, uint64_t left, const uint8_t** good, const Polynomial* polynomial
) noexcept nogil:
    """Whether the CRC of an index record is right; `good` is the end of the records checked ahead."""
    if p >= good[0]:
        good[0] = p + INDEX_SIZE * good_records(
            p, <size_t>min(left // INDEX_SIZE, <uint64_t>CHECKED_AHEAD), polynomial.tables, polynomial.folding
        )
    return p < good[0] or crc_by_tables(p, INDEX_SIZE - 4, polynomial.tables) == load32(p + INDEX_SIZE - 4)


cdef inline int read_header(
    const uint8_t* p, uint64_t left, uint32_t mask, uint32_t* size, uint32_t* crc
) noexcept nogil:
    """The reason why the record with `left` bytes up to the limit cannot be read, or END."""
    cdef uint64_t word
    size[0] = crc[0] = 0
    if left < HEADER_SIZE:
        return SHORT_HEADER
    word = load64(p)
    if word == 0:
        return ZEROS
    size[0] = <uint32_t>word & mask
    crc[0] = <uint32_t>(word >> 32)
    if size[0] > left - HEADER_SIZE:
        return DANGLING if left == HEADER_SIZE else SHORT_PAYLOAD
    return END


cdef struct Rows:
    int64_t* offset
    uint32_t* size
    uint64_t* sequence
    int64_t* timestamp
    int64_t* data_start
    uint32_t* data_size
    int64_t* reply_start
    uint32_t* reply_size
    uint8_t* flags


cdef class Subject:
    """The channel that messages should be of."""

    cdef bytes field
    cdef Channel channel

    def __cinit__(self, bytes name not None):
        self.field = b"\x12" + fieldscan.encode_varint(len(name)) + name
        self.channel.field = <const uint8_t*>PyBytes_AS_STRING(self.field)
        self.channel.field_size = <uint64_t>PyBytes_GET_SIZE(self.field)
        self.channel.size = <uint64_t>PyBytes_GET_SIZE(name)
        self.channel.name = self.channel.field + self.channel.field_size - self.channel.size
        if self.channel.size == 0:
            # The encoder omits an empty subject: the short path must not accept a field with one.
            self.channel.field_size = <uint64_t>-1


cdef inline bint is_of(const Message* message, const Channel* channel) noexcept nogil:
    """Whether a message has the channel's name for its subject."""
    return message.subject_size == channel.size and same_bytes(message.subject, channel.name, channel.size)


cdef class MessageSink:
    """The arrays of MessageColumns, and the channel that their messages should be of, held for the length of a call."""

    cdef int64_t[::1] offset
    cdef uint32_t[::1] size
    cdef uint64_t[::1] sequence
    cdef int64_t[::1] timestamp
    cdef int64_t[::1] data_start
    cdef uint32_t[::1] data_size
    cdef int64_t[::1] reply_start
    cdef uint32_t[::1] reply_size
    cdef uint8_t[::1] flags
    cdef Py_ssize_t capacity
    cdef Rows rows
    cdef Subject subject
    cdef Channel channel

    def __cinit__(self, columns, bytes channel not None):
        self.capacity = columns.capacity
        self.offset = columns.offset
        self.size = columns.size
        self.sequence = columns.sequence
        self.timestamp = columns.timestamp
        self.data_start = columns.data_start
        self.data_size = columns.data_size
        self.reply_start = columns.reply_start
        self.reply_size = columns.reply_size
        self.flags = columns.flags
        if self.capacity < 0 or self.capacity > min(
            self.offset.shape[0], self.size.shape[0], self.sequence.shape[0], self.timestamp.shape[0],
            self.data_start.shape[0], self.data_size.shape[0], self.reply_start.shape[0], self.reply_size.shape[0],
            self.flags.shape[0],
        ):
            raise ValueError("a column is shorter than the capacity")
        if self.capacity:
            self.rows.offset = &self.offset[0]
            self.rows.size = &self.size[0]
            self.rows.sequence = &self.sequence[0]
            self.rows.timestamp = &self.timestamp[0]
            self.rows.data_start = &self.data_start[0]
            self.rows.data_size = &self.data_size[0]
            self.rows.reply_start = &self.reply_start[0]
            self.rows.reply_size = &self.reply_size[0]
            self.rows.flags = &self.flags[0]
        self.subject = Subject(channel)
        self.channel = self.subject.channel


cdef inline int read_message(
    const uint8_t* base, uint64_t position, uint32_t size, const Channel* channel, const Rows* rows, Py_ssize_t row
) noexcept nogil:
    """Fills a row with the record at `position`, whose payload is complete; END or BAD_DECODE."""
    cdef Message message
    cdef const uint8_t* payload = base + position + HEADER_SIZE
    cdef const uint8_t* end = payload + size
    if not usual_message(payload, end, channel, &message):
        if not any_message(payload, end, UNLIMITED, &message):
            return BAD_DECODE
        if not is_of(&message, channel):
            message.flags |= FOREIGN_SUBJECT
    rows.offset[row] = <int64_t>position
    rows.size[row] = size
    rows.sequence[row] = message.sequence
    rows.timestamp[row] = message.timestamp
    rows.data_start[row] = message.data - base if message.data_size else 0
    rows.data_size[row] = <uint32_t>message.data_size
    rows.reply_start[row] = message.reply - base if message.reply_size else 0
    rows.reply_size[row] = <uint32_t>message.reply_size
    rows.flags[row] = message.flags
    return END


def scan_messages(
    buffer, int64_t start, int64_t limit, crc, channel, columns, Py_ssize_t row=0
):

    cdef Reader reader = Reader(buffer, crc)
    cdef MessageSink sink = MessageSink(columns, channel)
    cdef uint64_t end = reader.end(start, limit)
    cdef uint64_t position = <uint64_t>start
    cdef const uint8_t* base = reader.base
    cdef Rows rows = sink.rows
    cdef Channel subject = sink.channel
    cdef uint32_t size, stored
    cdef Py_ssize_t capacity = sink.capacity
    cdef int stop = END
    check_row(row, capacity)
    with nogil:
        while position < end:
            if row == capacity:
                stop = FULL
                break
            stop = read_header(base + position, end - position, UNTYPED, &size, &stored)
            if stop != END:
                break
            if reader.check and crc_of(base + position + HEADER_SIZE, size, &reader.polynomial) != stored:
                stop = BAD_CRC
                break
            stop = read_message(base, position, size, &subject, &rows, row)
            if stop != END:
                break
            row += 1
            position += HEADER_SIZE + <uint64_t>size
    return row, position, STOPS[stop]


cdef struct Pair:
    uint64_t first
    uint64_t last


def scan_run(
    buffer, int64_t start, int64_t until, crc, bytes channel not None, index, Py_ssize_t entry, uint64_t after,
    Py_ssize_t rows
):

    cdef Reader reader = Reader(buffer, crc)
    cdef Reader named = None if index is None else Reader(index, crc)
    cdef Subject subject = Subject(channel)
    cdef uint64_t limit = reader.size, end = reader.end(start, until), position = <uint64_t>start
    cdef const uint8_t* base = reader.base
    cdef const uint8_t* p
    cdef const uint8_t* record = NULL
    cdef const uint8_t* records_end = NULL
    cdef const uint8_t* good = NULL
    cdef Pair[MOST_RANGES] pairs
    cdef Message message
    cdef uint64_t total = 0, payload = 0, largest = 0
    cdef int64_t first_timestamp = 0, last_timestamp = 0
    cdef uint32_t size, stored
    cdef Py_ssize_t count = 0, ranges = 0
    if entry < 0:
        raise ValueError(f"index record {entry}")
    if named is not None:
        records_end = named.base + named.size
        if named.size >= FILE_HEADER and <uint64_t>entry <= (named.size - FILE_HEADER) // INDEX_SIZE:
            record = named.base + FILE_HEADER + entry * INDEX_SIZE
        else:
            record = records_end
    with nogil:
        while position < end and count < rows:
            p = base + position
            if read_header(p, limit - position, UNTYPED, &size, &stored) != END:
                break
            p += HEADER_SIZE
            if reader.check and crc_of(p, size, &reader.polynomial) != stored:
                break
            if not usual_message(p, p + size, &subject.channel, &message):
                if not any_message(p, p + size, UNLIMITED, &message) or not is_of(&message, &subject.channel):
                    break
            if message.flags & FOREIGN_SUBJECT or message.sequence <= after:
                break
            if record != NULL:
                if (
                    records_end - record < INDEX_SIZE
                    or load64(record) != message.sequence
                    or load64(record + 8) != position
                    or load64(record + 16) != <uint64_t>message.timestamp
                    or load32(record + 24) != size
                ):
                    break
                if reader.check and not checked_index_record(record, records_end - record, &good, &reader.polynomial):
                    break
                record += INDEX_SIZE
            if ranges and message.sequence == after + 1:
                pairs[ranges - 1].last = message.sequence
            elif ranges == MOST_RANGES:
                break
            else:
                pairs[ranges].first = pairs[ranges].last = message.sequence
                ranges += 1
            if count == 0:
                first_timestamp = message.timestamp
            last_timestamp = message.timestamp
            after = message.sequence
            total += size
            payload += message.data_size
            largest = max(largest, message.data_size)
            count += 1
            position += HEADER_SIZE + <uint64_t>size
    sequences = [(pairs[row].first, pairs[row].last) for row in range(ranges)]
    return count, position, sequences, total, payload, largest, first_timestamp, last_timestamp


def read_messages_at(
    buffer, int64_t limit, offsets, crc, channel, columns, uint8_t[::1] stops not None
):

    cdef Reader reader = Reader(buffer, crc)
    cdef MessageSink sink = MessageSink(columns, channel)
    cdef uint64_t end = reader.end(0, limit)
    cdef const int64_t[::1] places = offsets if type(offsets) is array else np.ascontiguousarray(offsets, np.int64)
    cdef Py_ssize_t count = places.shape[0], row
    cdef const uint8_t* base = reader.base
    cdef Rows rows = sink.rows
    cdef Channel subject = sink.channel
    cdef uint64_t position
    cdef uint32_t size, stored
    cdef int stop
    if count > sink.capacity or count > stops.shape[0]:
        raise ValueError(f"{count} offsets for {sink.capacity} rows and {stops.shape[0]} stops")
    with nogil:
        for row in range(count):
            position = <uint64_t>places[row]  # a negative one is beyond any limit
            size = 0
            stop = SHORT_HEADER
            if position < end:
                stop = read_header(base + position, end - position, UNTYPED, &size, &stored)
            if stop == END:
                if reader.check and crc_of(base + position + HEADER_SIZE, size, &reader.polynomial) != stored:
                    stop = BAD_CRC
                else:
                    stop = read_message(base, position, size, &subject, &rows, row)
            if stop != END:
                rows.offset[row] = <int64_t>position
                rows.size[row] = size
                rows.sequence[row] = 0
                rows.timestamp[row] = rows.data_start[row] = rows.reply_start[row] = 0
                rows.data_size[row] = rows.reply_size[row] = 0
                rows.flags[row] = 0
            stops[row] = <uint8_t>stop


def gather(buffer, starts, sizes, int32_t[::1] offsets not None, uint8_t[::1] target not None):

    cdef Py_buffer view
    cdef const int64_t[::1] places = np.ascontiguousarray(starts, np.int64)
    cdef const uint32_t[::1] lengths = np.ascontiguousarray(sizes, np.uint32)
    cdef Py_ssize_t count = places.shape[0], row
    cdef const uint8_t* base
    cdef uint64_t limit, at = 0, room = <uint64_t>target.shape[0], length, start
    cdef uint8_t* goal = &target[0] if room else NULL
    cdef bint outside = False
    if lengths.shape[0] != count or offsets.shape[0] != count + 1 or room > 0x7FFFFFFF:
        raise ValueError(f"{count} parts for {offsets.shape[0]} offsets and {room} bytes")
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        base = <const uint8_t*>view.buf
        limit = <uint64_t>view.len
        with nogil:
            offsets[0] = 0
            for row in range(count):
                length = lengths[row]
                if length:
                    start = <uint64_t>places[row]  # a negative one is beyond any limit
                    if start > limit or length > limit - start:
                        outside = True
                        break
                    if length > room - at:
                        break
                    memcpy(goal + at, base + start, length)
                    at += length
                offsets[row + 1] = <int32_t>at
            else:
                row = count
    finally:
        PyBuffer_Release(&view)
    if outside:
        raise ValueError("a part lies outside of the buffer")
    if row != count or at != room:
        raise ValueError(f"the parts have not the {room} bytes that there is room for")


def find_record(buffer, int64_t start, int64_t limit, crc, bytes channel not None, int64_t until=-1):

    return find(buffer, start, limit, crc, 0, until)


def find_log_record(buffer, int64_t start, int64_t limit, crc, int max_type, int64_t until=-1):

    if not 0 < max_type < 256:
        raise ValueError(f"{max_type} is not a record type")
    return find(buffer, start, limit, crc, max_type, until)


cdef int64_t find(buffer, int64_t start, int64_t limit, crc, int max_type, int64_t until) except -2:
    """The next record header; `max_type` is 0 for message records."""
    cdef Reader reader = Reader(buffer, crc)
    cdef uint64_t end = reader.end(start, limit)
    cdef uint64_t position = <uint64_t>start
    cdef uint64_t last = end if until < 0 else <uint64_t>until
    cdef const uint8_t* p
    cdef uint64_t word
    cdef uint32_t size
    cdef int first, kind
    cdef Message message
    with nogil:
        # A record has at least one byte of payload.
        while position < end and end - position > HEADER_SIZE and position < last:
            p = reader.base + position
            word = load64(p)
            if word == 0:
                # The earliest header whose size is not zero has the first other byte at its end.
                position += 5
                continue
            position += 1
            size = <uint32_t>word
            if max_type:
                kind = <int>(size >> 24)
                size &= 0xFFFFFF
                if kind == 0 or kind > max_type:
                    continue
            first = p[HEADER_SIZE]
            if size == 0 or size > end - position - (HEADER_SIZE - 1) or first < 8 or not 0x2F >> (first & 7) & 1:
                continue
            p += HEADER_SIZE
            if max_type:
                if not any_fields(p, p + size, MAX_FIELDS):
                    continue
            elif not any_message(p, p + size, MAX_FIELDS, &message):
                continue
            elif message.sequence == 0 or message.subject_size == 0:
                continue
            if crc_of(p, size, &reader.polynomial) == <uint32_t>(word >> 32):
                with gil:
                    return <int64_t>position - 1
    return -1


def scan_log(buffer, int64_t start, int64_t limit, crc, columns, Py_ssize_t row=0):

    cdef Reader reader = Reader(buffer, crc)
    cdef uint64_t end = reader.end(start, limit)
    cdef uint64_t position = <uint64_t>start
    cdef int64_t[::1] offset = columns.offset
    cdef uint32_t[::1] sizes = columns.size
    cdef uint8_t[::1] kinds = columns.type
    cdef uint64_t[::1] ids = columns.id
    cdef uint64_t[::1] seqs = columns.seq
    cdef Py_ssize_t capacity = columns.capacity
    cdef const uint8_t* p
    cdef uint64_t identity, sequence
    cdef uint32_t size, stored
    cdef uint8_t kind
    cdef int stop = END
    if capacity > min(offset.shape[0], sizes.shape[0], kinds.shape[0], ids.shape[0], seqs.shape[0]):
        raise ValueError("a column is shorter than the capacity")
    check_row(row, capacity)
    with nogil:
        while position < end:
            if row == capacity:
                stop = FULL
                break
            p = reader.base + position
            stop = read_header(p, end - position, 0xFFFFFF, &size, &stored)
            if stop != END:
                break
            kind = p[3]
            p += HEADER_SIZE
            if reader.check and crc_of(p, size, &reader.polynomial) != stored:
                stop = BAD_CRC
                break
            identity = sequence = 0
            if 3 <= kind <= 5 and not any_update(p, p + size, kind != 3, &identity, &sequence):
                stop = BAD_DECODE
                break
            offset[row] = <int64_t>position
            sizes[row] = size
            kinds[row] = kind
            ids[row] = identity
            seqs[row] = sequence
            row += 1
            position += HEADER_SIZE + <uint64_t>size
    return row, position, STOPS[stop]


cdef struct IndexTotals:
    # Totals of the records so far.
    uint64_t count
    uint64_t sizes
    uint64_t last
    bint rises


cdef int count_records(
    const uint8_t* p, const uint8_t* end, bint check, const Polynomial* polynomial, IndexTotals* totals
) noexcept nogil:
    """Scans index records up to the first one that is not good, and returns the reason."""
    cdef const uint8_t* good = NULL
    # Local copies stay in registers: the compiler must assume that `totals` and `p` overlap.
    cdef uint64_t count = totals.count, sizes = totals.sizes, last = totals.last, sequence
    cdef bint rises = totals.rises
    cdef int stop = END
    while p < end:
        if end - p < INDEX_SIZE:
            stop = SHORT_HEADER
            break
        sequence = load64(p)
        if sequence == 0 and (load64(p + 8) | load64(p + 16) | load64(p + 24)) == 0:
            stop = ZEROS
            break
        if check and not checked_index_record(p, end - p, &good, polynomial):
            stop = BAD_CRC
            break
        if sequence <= last and count:
            rises = False
        last = sequence
        sizes += load32(p + 24)
        count += 1
        p += INDEX_SIZE
    totals.count, totals.sizes, totals.last, totals.rises = count, sizes, last, rises
    return stop


def scan_index(buffer, int64_t start, int64_t limit, crc):

    cdef Reader reader = Reader(buffer, crc)
    cdef uint64_t end = reader.end(start, limit)
    cdef IndexTotals totals = IndexTotals(0, 0, 0, True)
    cdef int stop = END
    if <uint64_t>start < end:
        with nogil:
            stop = count_records(reader.base + start, reader.base + end, reader.check, &reader.polynomial, &totals)
    return totals.count, STOPS[stop], totals.sizes, totals.rises


def read_index(int descriptor, int64_t start, int64_t limit, crc, size_t part=INDEX_PART):

    cdef Reader reader = Reader(b"", crc)
    cdef IndexTotals totals = IndexTotals(0, 0, 0, True)
    cdef uint8_t* room
    cdef size_t size
    cdef int stop = END
    cdef bint whole = True
    reader.end(start, limit)
    if part == 0 or part % INDEX_SIZE:
        raise ValueError(f"{part} bytes are not whole records")
    room = <uint8_t*>malloc(part)
    if not room:
        raise MemoryError
    with nogil:
        while stop == END and start < limit:
            size = <size_t>min(<uint64_t>part, <uint64_t>(limit - start))
            whole = pread(descriptor, room, size, start) == <int64_t>size
            if not whole:
                break
            stop = count_records(room, room + size, reader.check, &reader.polynomial, &totals)
            start += size
        free(room)
    return (totals.count, STOPS[stop], totals.sizes, totals.rises) if whole else None


cdef enum:
    PAGE_HEADER = 16
    ELEMENT_SIZE = 16
    KEY_SIZE = 8
    # Limit of the total size of a page's values, as a multiple of the page.
    OVERLAP = 4


cdef tuple told(const Published* run, Py_ssize_t row):
    """A run that ends before a row."""
    name = PyBytes_FromStringAndSize(<char*>run.channel.name, <Py_ssize_t>run.channel.size)
    row -= <Py_ssize_t>(run.last_index - run.first_index) + 1
    return run.first_index, run.last_index, run.term, name, run.channel_id, run.first, run.last, run.size, row


def scan_leaf(
    buffer, int64_t at, int64_t limit, Py_ssize_t count, bytes low not None, high, uint64_t term, uint64_t bound
):

    cdef Py_buffer view
    cdef const uint8_t* begin
    cdef const uint8_t* end
    cdef const uint8_t* element
    cdef const uint8_t* table_end
    cdef const uint8_t* value
    cdef uint64_t left, key, before = 0, place, key_size, size
    cdef Py_ssize_t row
    cdef Entry entry
    cdef Published run
    cdef Published one
    cdef bint running = False, known = True
    cdef list parts = []
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        if at < 0 or limit > view.len or limit - at < PAGE_HEADER or count < 1 or (
            count > (limit - at - PAGE_HEADER) // ELEMENT_SIZE
        ):
            return None
        begin = <const uint8_t*>view.buf + at
        end = <const uint8_t*>view.buf + limit
        table_end = begin + PAGE_HEADER + count * ELEMENT_SIZE
        left = OVERLAP * <uint64_t>(limit - at)
        for row in range(count):
            element = begin + PAGE_HEADER + row * ELEMENT_SIZE
            place, key_size, size = load32(element + 4), load32(element + 8), load32(element + 12)
            # All numbers have 32 bits, so that nothing overflows.
            if (
                key_size != KEY_SIZE
                or place < <uint64_t>(table_end - element)
                or place + KEY_SIZE + size > <uint64_t>(end - element)
                or KEY_SIZE + size > left
            ):
                return None
            left -= KEY_SIZE + size
            key = big_endian(element + place, KEY_SIZE)
            if (row and key <= before) or (row == 0 and int(key).to_bytes(8, "big") < low):
                return None
            before = key
            value = element + place + KEY_SIZE
            known = known and usual_entry(value, value + size, &entry)
            if known and entry.index == key and entry.term >= term:
                term = entry.term
                if usual_publish(&entry, &one):
                    if (
                        running
                        and key == run.last_index + 1
                        and key != bound + 1
                        and entry.term == run.term
                        and one.channel_id == run.channel_id
                        and one.first == run.last + 1
                        and one.channel.size == run.channel.size
                        and same_bytes(one.channel.name, run.channel.name, run.channel.size)
                    ):
                        run.last_index = key
                        run.last = one.last
                        run.size += size
                        continue
                    if running:
                        parts.append(told(&run, row))
                    run = one
                    run.first_index = run.last_index = key
                    run.term = term
                    run.size = size
                    running = True
                    continue
            if running:
                parts.append(told(&run, row))
                running = False
            parts.append(row)
        if running:
            parts.append(told(&run, count))
        if high is not None and int(before).to_bytes(8, "big") >= high:
            return None
    finally:
        PyBuffer_Release(&view)
    return parts


cdef const uint8_t* value_of(const Py_buffer* view, int64_t at, Py_ssize_t row, uint64_t* size) noexcept nogil:
    """An element of a leaf page: its key, followed by its value, with their sizes. NULL if it lies outside."""
    cdef uint64_t length = <uint64_t>view.len, element, place
    if at < 0 or row < 0 or <uint64_t>at > length or <uint64_t>row > length // ELEMENT_SIZE:
        return NULL
    element = <uint64_t>at + PAGE_HEADER + <uint64_t>row * ELEMENT_SIZE
    if element + ELEMENT_SIZE > length:
        return NULL
    place = load32(<const uint8_t*>view.buf + element + 4)
    size[0] = <uint64_t>load32(<const uint8_t*>view.buf + element + 8)
    size[0] += load32(<const uint8_t*>view.buf + element + 12)
    if place + size[0] > length - element:
        return NULL
    return <const uint8_t*>view.buf + element + place


def same_entries(buffer, int64_t at, Py_ssize_t row, other, int64_t other_at, Py_ssize_t other_row, Py_ssize_t count):

    cdef Py_buffer view, other_view
    cdef const uint8_t* mine
    cdef const uint8_t* theirs
    cdef uint64_t size = 0, other_size = 0, last = 0
    cdef Py_ssize_t same
    cdef Entry entry
    cdef Published run
    PyObject_GetBuffer(buffer, &view, PyBUF_SIMPLE)
    try:
        PyObject_GetBuffer(other, &other_view, PyBUF_SIMPLE)
        try:
            with nogil:
                for same in range(count):
                    mine = value_of(&view, at, row + same, &size)
                    theirs = value_of(&other_view, other_at, other_row + same, &other_size)
                    if mine == NULL or theirs == NULL or size != other_size or memcmp(mine, theirs, size) != 0:
                        break
                    if size < KEY_SIZE or not usual_entry(mine + KEY_SIZE, mine + size, &entry):
                        break
                    if not usual_publish(&entry, &run):
                        break
                    last = run.last
                else:
                    same = count
        finally:
            PyBuffer_Release(&other_view)
    finally:
        PyBuffer_Release(&view)
    return same, last


cdef inline void put_index(
    uint8_t* p, uint64_t sequence, int64_t offset, int64_t timestamp, uint32_t size, const uint32_t* tables
) noexcept nogil:
    store64(p, sequence)
    store64(p + 8, <uint64_t>offset)
    store64(p + 16, <uint64_t>timestamp)
    store32(p + 24, size)
    store32(p + 28, crc_by_tables(p, INDEX_SIZE - 4, tables))


def encode_index(sequence, offset, timestamp, size, crc):

    cdef const uint64_t[::1] sequences = np.ascontiguousarray(sequence, np.uint64)
    cdef const int64_t[::1] offsets = np.ascontiguousarray(offset, np.int64)
    cdef const int64_t[::1] timestamps = np.ascontiguousarray(timestamp, np.int64)
    cdef const uint32_t[::1] sizes = np.ascontiguousarray(size, np.uint32)
    cdef Py_ssize_t count = sequences.shape[0], row
    cdef Reader reader = Reader(b"", crc)
    cdef bytes encoded
    cdef uint8_t* p
    if offsets.shape[0] != count or timestamps.shape[0] != count or sizes.shape[0] != count:
        raise ValueError("the columns of an index have different lengths")
    encoded = PyBytes_FromStringAndSize(NULL, count * INDEX_SIZE)
    p = <uint8_t*>PyBytes_AS_STRING(encoded)
    with nogil:
        for row in range(count):
            put_index(p, sequences[row], offsets[row], timestamps[row], sizes[row], reader.polynomial.tables)
            p += INDEX_SIZE
    return encoded


def index_record(uint64_t sequence, int64_t offset, int64_t timestamp, uint32_t size, crc):

    cdef Reader reader = reader_of(crc)
    cdef bytes encoded = PyBytes_FromStringAndSize(NULL, INDEX_SIZE)
    put_index(<uint8_t*>PyBytes_AS_STRING(encoded), sequence, offset, timestamp, size, reader.polynomial.tables)
    return encoded


cdef class Column:
    """An array of numbers of this size in bytes, held for the length of a call."""

    cdef Py_buffer buffer
    cdef bint held

    def __cinit__(self, column, Py_ssize_t width, Py_ssize_t count):
        PyObject_GetBuffer(column, &self.buffer, PyBUF_ND)
        self.held = True
        if self.buffer.itemsize != width or self.buffer.ndim != 1:
            raise ValueError(f"a column of a run has no numbers of {width} bytes")
        if self.buffer.shape[0] != count:
            raise ValueError("the columns of a run have different lengths")

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.buffer)


cdef Reader last_reader = None
cdef object last_crc = None


cdef Reader reader_of(crc):
    """A reader without a buffer: writers use the same CRC repeatedly, often for a single message."""
    global last_reader, last_crc
    if last_crc is not crc:
        last_reader = Reader(b"", crc)
        last_crc = crc
    return last_reader


def index_run(data, starts, sizes, sequences, timestamps, int64_t offset, uint64_t after, crc):

    cdef Py_ssize_t count = len(sizes), row
    cdef Column start_column = Column(starts, 8, count)
    cdef Column size_column = Column(sizes, 4, count)
    cdef Column sequence_column = Column(sequences, 8, count)
    cdef Column timestamp_column = Column(timestamps, 8, count)
    cdef Column held = Column(data, 1, len(data))
    cdef const int64_t* start = <const int64_t*>start_column.buffer.buf
    cdef const uint32_t* size = <const uint32_t*>size_column.buffer.buf
    cdef const uint64_t* sequence = <const uint64_t*>sequence_column.buffer.buf
    cdef const int64_t* timestamp = <const int64_t*>timestamp_column.buffer.buf
    cdef const uint8_t* base = <const uint8_t*>held.buffer.buf
    cdef Reader reader = reader_of(crc)
    cdef int64_t at, begin, limit = held.buffer.len
    cdef bytes encoded
    cdef uint8_t* p
    if count == 0:
        return None
    begin = at = start[0] - HEADER_SIZE
    if at < 0:
        return None
    encoded = PyBytes_FromStringAndSize(NULL, count * INDEX_SIZE)
    p = <uint8_t*>PyBytes_AS_STRING(encoded)
    for row in range(count):
        if (
            limit - at < HEADER_SIZE
            or start[row] != at + HEADER_SIZE
            or limit - start[row] < <int64_t>size[row]
            or load32(base + at) != size[row]
            or after == <uint64_t>-1
            or sequence[row] != after + 1
        ):
            return None
        after += 1
        put_index(p, after, offset + at - begin, timestamp[row], size[row], reader.polynomial.tables)
        p += INDEX_SIZE
        at = start[row] + <int64_t>size[row]
    return encoded, begin, at


cdef struct Piece:
    const uint8_t* data
    uint64_t size


cdef inline uint8_t* put_bytes(uint8_t* p, uint8_t tag, const Piece* piece) noexcept nogil:
    if piece.size == 0:
        return p
    p[0] = tag
    p = put_varint(p + 1, piece.size)
    memcpy(p, piece.data, piece.size)
    return p + piece.size


cdef inline uint64_t bytes_field_size(uint64_t size) noexcept nogil:
    return 1 + varint_size(size) + size if size else 0


cdef tuple as_bytes(items):
    """The items as bytes objects that stay alive; usually the same objects."""
    return tuple([item if type(item) is bytes else bytes(memoryview(item)) for item in items])


def encode_messages(bytes channel not None, sequences, timestamps, replies, payloads, crc):

    cdef const uint64_t[::1] numbers = np.ascontiguousarray(sequences, np.uint64)
    cdef const int64_t[::1] times = np.ascontiguousarray(timestamps, np.int64)
    cdef tuple data = as_bytes(payloads)
    cdef tuple reply = None if replies is None else as_bytes(replies)
    cdef Py_ssize_t count = len(data), row
    cdef Reader reader = Reader(b"", crc)
    cdef Piece subject
    cdef Piece none
    cdef Piece* pieces
    cdef uint64_t size, total = 0
    cdef uint8_t* p
    cdef uint8_t* begin
    cdef bytes encoded
    if numbers.shape[0] != count or times.shape[0] != count or (reply is not None and len(reply) != count):
        raise ValueError("sequences, timestamps, replies and payloads differ in number")
    sizes = np.zeros(count, np.uint32)
    cdef uint32_t[::1] size_of = sizes
    subject.data = <const uint8_t*>PyBytes_AS_STRING(channel)
    subject.size = <uint64_t>PyBytes_GET_SIZE(channel)
    none.data = NULL
    none.size = 0
    pieces = <Piece*>malloc((2 * count + 1) * sizeof(Piece))
    if pieces == NULL:
        raise MemoryError
    try:
        for row in range(count):
            pieces[2 * row].data = <const uint8_t*>PyBytes_AS_STRING(data[row])
            pieces[2 * row].size = <uint64_t>PyBytes_GET_SIZE(data[row])
            pieces[2 * row + 1] = none
            if reply is not None:
                pieces[2 * row + 1].data = <const uint8_t*>PyBytes_AS_STRING(reply[row])
                pieces[2 * row + 1].size = <uint64_t>PyBytes_GET_SIZE(reply[row])
            size = bytes_field_size(subject.size)
            size += bytes_field_size(pieces[2 * row].size) + bytes_field_size(pieces[2 * row + 1].size)
            if numbers[row]:
                size += 1 + varint_size(numbers[row])
            if times[row]:
                size += 1 + varint_size(<uint64_t>times[row])
            if size > UNTYPED:
                raise ValueError(f"a message of {size} bytes does not fit into a record")
            size_of[row] = <uint32_t>size
            total += HEADER_SIZE + size
        encoded = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>total)
        p = <uint8_t*>PyBytes_AS_STRING(encoded)
        with nogil:
            for row in range(count):
                begin = p
                p += HEADER_SIZE
                if numbers[row]:
                    p[0] = 0x08
                    p = put_varint(p + 1, numbers[row])
                p = put_bytes(p, 0x12, &subject)
                p = put_bytes(p, 0x1A, &pieces[2 * row + 1])
                p = put_bytes(p, 0x22, &pieces[2 * row])
                if times[row]:
                    p[0] = 0x28
                    p = put_varint(p + 1, <uint64_t>times[row])
                store32(begin, size_of[row])
                store32(begin + 4, crc_of(begin + HEADER_SIZE, size_of[row], &reader.polynomial))
    finally:
        free(pieces)
    return encoded, sizes


cdef inline uint8_t* put_flow(
    uint8_t* record, int kind, const uint8_t* prefix, size_t prefix_size, uint32_t begin, uint64_t sequence,
    const uint32_t* table
) noexcept nogil:
    """Writes one record; `begin` is the register after the prefix of all records of the call. Returns its end."""
    cdef uint8_t* p = record + HEADER_SIZE + prefix_size
    cdef const uint8_t* q = p
    cdef uint32_t register = begin
    memcpy(record + HEADER_SIZE, prefix, prefix_size)
    if sequence:
        p[0] = 0x10
        p = put_varint(p + 1, sequence)
    while q != p:
        register = table[(register ^ q[0]) & 0xFF] ^ (register >> 8)
        q += 1
    store32(record, <uint32_t>kind << 24 | <uint32_t>(p - record - HEADER_SIZE))
    store32(record + 4, ~register)
    return p


def encode_flow(int kind, number, sequences, crc):
    cdef Reader reader = reader_of(crc)
    cdef const uint32_t* table = reader.polynomial.tables
    cdef uint8_t[LONGEST_FLOW] prefix
    cdef uint8_t[FEW_FLOWS * LONGEST_FLOW] few
    cdef uint32_t begin = 0xFFFFFFFF
    cdef uint64_t subscription = number, sequence
    cdef Py_ssize_t count = len(sequences), prefix_size = 0, i
    cdef uint8_t* records = few
    cdef uint8_t* record
    if subscription:
        prefix[0] = 0x08
        prefix_size = put_varint(prefix + 1, subscription) - prefix
    # The CRCs of all records of a call share the prefix.
    for i in range(prefix_size):
        begin = table[(begin ^ prefix[i]) & 0xFF] ^ (begin >> 8)
    if count > FEW_FLOWS:
        records = <uint8_t*>malloc(count * LONGEST_FLOW)
        if records == NULL:
            raise MemoryError
    try:
        record = records
        if type(sequences) is range and sequences.step == 1:
            # No object per record. The last one fits into 64 bits if its number does.
            if count:
                sequence = sequences[-1]
                sequence = sequences[0]
            for i in range(count):
                record = put_flow(record, kind, prefix, prefix_size, begin, sequence + <uint64_t>i, table)
        else:
            for each in sequences:
                if record - records > (count - 1) * LONGEST_FLOW:
                    raise ValueError("more sequences than were announced")
                record = put_flow(record, kind, prefix, prefix_size, begin, each, table)
        return PyBytes_FromStringAndSize(<char*>records, record - records)
    finally:
        if records != few:
            free(records)


cdef int check_row(Py_ssize_t row, Py_ssize_t capacity) except -1:
    if not 0 <= row <= capacity:
        raise ValueError(f"row {row} of {capacity}")
    return 0
