# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The kernels of stream archives, compiled. `kernels.pyi` has the contract of each function.

Every call releases the interpreter lock while it works. The hash of a record is made from the copy in the block: the
source is a mapped file that a running server may write to, and a hash that does not match its record would truncate the
stream in the target.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from stantools.format._bytes cimport (
    crc_by_multiplication, crc_by_tables, has_multiplication, load32, load64, store32, store64
)
from stantools.streamfiles._headers cimport header_size, unsigned_decimal_size, write_header, write_unsigned_decimal
from stantools.streamfiles._highway cimport HashPart, has_avx2, highway_avx2, highway_portable

cdef extern from "<time.h>" nogil:
    ctypedef long time_t

    cdef struct tm:
        int tm_sec
        int tm_min
        int tm_hour
        int tm_mday
        int tm_mon
        int tm_year

    tm* gmtime_r(const time_t* seconds, tm* broken)

from stantools.format.crc import CASTAGNOLI, Crc
from stantools.lazy_numpy import np
from stantools.streamfiles import layout


cdef enum:
    # Members of layout.WriteStop.
    DONE = 0
    NO_ROOM = 1
    GAP = 2
    TOO_LARGE = 3
    BAD_SEQUENCE = 4
    # Mistakes of the caller.
    OUTSIDE = 5
    BLOCK_TOO_SMALL = 6
    # Members of layout.RecordFlaw.
    FINE = 0
    COLUMNS_FULL = 1
    CUT = 2
    BAD_LENGTH = 3
    BAD_HASH = 4

    HEAD_SIZE = 22
    LENGTH_SIZE = 4
    HASH_SIZE = 8
    EMPTY_SIZE = 30
    MAX_VARINT = 10
    SECOND = 1000000000
    KEY_SIZE = 32
    HIGH_BITS = 0x3F  # of a sequence; the other two of its highest byte are flags
    CHUNK_SIZE = 65536
    CHUNK_HEAD_SIZE = 8
    STORED = 1
    MOST = 0x7FFFFFFF  # the places are int32
    TIME_SIZE = 40  # bytes of the longest time, and more
    #: Below this size tables are as fast as multiplication.
    MULTIPLY_FROM = 32

#: odd factors that spread the bits of a subject's hash
cdef uint64_t FIRST_FACTOR = 0x9E3779B97F4A7C15
cdef uint64_t SECOND_FACTOR = 0x100000001B3

cdef uint32_t HAS_HEADERS = layout.HAS_HEADERS
cdef uint64_t SKIPPED = layout.SKIPPED
cdef uint64_t MAX_SEQUENCE = layout.MAX_SEQUENCE
cdef uint64_t MAX_RECORD_SIZE = layout.MAX_RECORD_SIZE
cdef uint64_t MAX_SKIPS = layout.MAX_SKIPS

cdef tuple STOPS = tuple(layout.WriteStop)
cdef tuple FLAWS = tuple(layout.RecordFlaw)

ctypedef uint64_t (*Hash)(const uint8_t* key, const HashPart* parts, size_t count) noexcept nogil
cdef Hash hash_of = highway_avx2 if has_avx2() else highway_portable

CASTAGNOLI_CRC = Crc(CASTAGNOLI)
cdef const uint32_t[:, ::1] TABLES = CASTAGNOLI_CRC.tables
cdef const uint64_t[::1] FOLDING = CASTAGNOLI_CRC.folding
cdef size_t multiply_from = MULTIPLY_FROM if has_multiplication() else <size_t>-1


cdef inline uint32_t crc_of(const uint8_t* p, size_t size) noexcept nogil:
    if size >= multiply_from:
        return crc_by_multiplication(p, size, &FOLDING[0])
    return crc_by_tables(p, size, &TABLES[0, 0])


cdef class Bytes:
    """A buffer to read from, held for the length of a call."""

    cdef Py_buffer buffer
    cdef bint held
    cdef const uint8_t* base
    cdef uint64_t size

    def __cinit__(self, buffer):
        PyObject_GetBuffer(buffer, &self.buffer, PyBUF_SIMPLE)
        self.held = True
        self.base = <const uint8_t*>self.buffer.buf
        self.size = <uint64_t>self.buffer.len

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.buffer)


cdef uint8_t[::1] writable(out):
    """A buffer to write to."""
    return np.frombuffer(out, np.uint8)


cdef Bytes checked(key):
    cdef Bytes held = Bytes(key)
    if held.size != KEY_SIZE:
        raise ValueError(f"a key of {held.size} bytes")
    return held


cdef inline uint64_t hash_record(
    Hash function, const uint8_t* key, const uint8_t* record, uint64_t size, uint64_t subject_size, bint headers
) noexcept nogil:
    """The hash over a whole record, which leaves its sizes out."""
    cdef HashPart parts[3]
    cdef size_t count = 2
    parts[0].start = record + 4
    parts[0].size = 16
    parts[1].start = record + HEAD_SIZE
    parts[1].size = size - HEAD_SIZE - HASH_SIZE
    if headers:
        parts[1].size = subject_size
        parts[2].start = record + HEAD_SIZE + subject_size + LENGTH_SIZE
        parts[2].size = size - HEAD_SIZE - subject_size - LENGTH_SIZE - HASH_SIZE
        count = 3
    return function(key, parts, count)


def hash64(data, key, bint portable=False):

    cdef Bytes text = Bytes(data)
    cdef Bytes keys = checked(key)
    cdef HashPart part
    cdef Hash function = highway_portable if portable else hash_of
    cdef uint64_t value
    part.start = text.base
    part.size = text.size
    with nogil:
        value = function(keys.base, &part, 1)
    return value


def hash_parts(parts, key, bint portable=False):
    """The hash of up to 16 parts as one text: for tests of its continuation from part to part."""
    cdef list held = [Bytes(part) for part in parts]
    cdef Bytes keys = checked(key)
    cdef HashPart places[16]
    cdef size_t count = len(held), index
    if count > 16:
        raise ValueError(f"{count} parts")
    for index in range(count):
        places[index].start = (<Bytes>held[index]).base
        places[index].size = (<Bytes>held[index]).size
    return (highway_portable if portable else hash_of)(keys.base, places, count)


def crc32c(data):

    cdef Bytes view = Bytes(data)
    cdef uint32_t value
    with nogil:
        value = crc_of(view.base, view.size)
    return value


def frame(data, out, int64_t position):

    cdef Bytes view = Bytes(data)
    cdef uint8_t[::1] target = writable(out)
    cdef uint64_t chunks = (view.size + CHUNK_SIZE - 1) // CHUNK_SIZE
    cdef uint64_t room = <uint64_t>target.shape[0]
    cdef const uint8_t* p = view.base
    cdef uint8_t* q
    cdef uint64_t left = view.size
    cdef uint32_t size, crc
    if position < 0 or <uint64_t>position > room or view.size + chunks * CHUNK_HEAD_SIZE > room - <uint64_t>position:
        raise ValueError(f"the frame of {view.size} bytes does not fit into {room} bytes")
    if left == 0:
        return position
    q = &target[0] + position
    with nogil:
        while left:
            size = <uint32_t>min(left, <uint64_t>CHUNK_SIZE)
            memcpy(q + CHUNK_HEAD_SIZE, p, size)
            crc = crc_of(q + CHUNK_HEAD_SIZE, size)
            store32(q, STORED | (size + 4) << 8)
            store32(q + 4, (crc >> 15 | crc << 17) + <uint32_t>0xA282EAD8)
            q += CHUNK_HEAD_SIZE + size
            p += size
            left -= size
    return position + <int64_t>(view.size + chunks * CHUNK_HEAD_SIZE)


cdef inline uint8_t* write_skips(
    uint8_t* p, uint64_t first, uint64_t count, int64_t timestamp, Hash function, const uint8_t* key
) noexcept nogil:
    cdef uint64_t sequence
    for sequence in range(first, first + count):
        store32(p, EMPTY_SIZE)
        store64(p + 4, sequence | SKIPPED)
        store64(p + 12, <uint64_t>timestamp)
        p[20] = p[21] = 0
        store64(p + HEAD_SIZE, hash_record(function, key, p, EMPTY_SIZE, 0, False))
        p += EMPTY_SIZE
    return p


def encode_skips(block, uint64_t sequence, uint64_t count, int64_t timestamp):

    cdef uint8_t[::1] target = writable(block.content)
    cdef Bytes keys = checked(block.key)
    cdef int64_t position = block.position
    cdef uint64_t room = <uint64_t>target.shape[0]
    if position < 0 or <uint64_t>position > room or count > (room - <uint64_t>position) // EMPTY_SIZE:
        raise ValueError(f"{count} skip records do not fit into the block at {position}")
    if count == 0:
        return
    with nogil:
        write_skips(&target[0] + position, sequence, count, timestamp, hash_of, keys.base)
    block.position = position + <int64_t>(count * EMPTY_SIZE)


cdef inline uint8_t* put_varint(uint8_t* p, uint64_t number) noexcept nogil:
    while number > 0x7F:
        p[0] = <uint8_t>(number & 0x7F | 0x80)
        number >>= 7
        p += 1
    p[0] = <uint8_t>number
    return p + 1


cdef inline uint64_t zigzag(int64_t number) noexcept nogil:
    return <uint64_t>number << 1 ^ <uint64_t>(number >> 63)


cdef inline int64_t seconds(int64_t time) noexcept nogil:
    return time // SECOND - (time % SECOND < 0)


def encode_pending(dict pending, uint64_t floor, uint64_t number_floor):
    cdef list order = sorted(pending)
    cdef Py_ssize_t i, count = len(order)
    cdef bytes encoded = PyBytes_FromStringAndSize(NULL, (1 + 3 * count) * MAX_VARINT)
    cdef uint8_t* begin = <uint8_t*>PyBytes_AS_STRING(encoded)
    cdef int64_t time = max([time for _, time in pending.values()])
    cdef int64_t base = seconds(time)
    cdef uint8_t* p = put_varint(begin, zigzag(base))
    cdef uint64_t sequence, number
    for i in range(count):
        sequence = order[i]
        number, time = pending[order[i]]
        p = put_varint(p, sequence - floor)
        p = put_varint(p, number - number_floor)
        p = put_varint(p, zigzag(base - seconds(time)))
    return encoded[: p - begin]


def encode_redelivered(dict redelivered, uint64_t floor):
    cdef list order = sorted(redelivered)
    cdef Py_ssize_t i, count = len(order)
    cdef bytes encoded = PyBytes_FromStringAndSize(NULL, 2 * count * MAX_VARINT)
    cdef uint8_t* begin = <uint8_t*>PyBytes_AS_STRING(encoded)
    cdef uint8_t* p = begin
    cdef uint64_t sequence
    for i in range(count):
        sequence = order[i]
        p = put_varint(put_varint(p, sequence - floor), redelivered[order[i]])
    return encoded[: p - begin]


cdef uint64_t TOMBSTONE_BIT = <uint64_t>1 << 62


def encode_tombstones(sequences, times, bytes key not None):
    cdef const uint64_t[::1] numbers = np.ascontiguousarray(sequences, np.uint64)
    cdef const int64_t[::1] when = np.ascontiguousarray(times, np.int64)
    cdef const uint8_t* keys = key_of(key)
    cdef Py_ssize_t i, count = numbers.shape[0]
    if when.shape[0] != count:
        raise ValueError(f"{count} sequences with {when.shape[0]} times")
    cdef bytes records = PyBytes_FromStringAndSize(NULL, count * EMPTY_SIZE)
    cdef uint8_t* p = <uint8_t*>PyBytes_AS_STRING(records)
    with nogil:
        for i in range(count):
            p = put_record(p, numbers[i] | TOMBSTONE_BIT, when[i], p, 0, p, 0, p, 0, keys)
    return records


cdef inline bint within(int64_t start, uint32_t size, uint64_t end) noexcept nogil:
    return start >= 0 and size <= end and <uint64_t>start <= end - size


cdef inline bint record_within(
    int64_t subject_start, uint32_t size, uint64_t subject_size, int64_t header_start, uint64_t end
) noexcept nogil:
    return (
        subject_start >= HEAD_SIZE
        and size >= EMPTY_SIZE + subject_size + (LENGTH_SIZE if header_start else 0)
        and within(subject_start - HEAD_SIZE, size, end)
    )


@cython.final
cdef class BlockEnd:
    """The end of a block that is being written, and the rules for the record that follows."""

    cdef Bytes keys
    cdef uint8_t[::1] target
    cdef uint64_t at, capacity, room, last, live
    cdef int64_t last_time

    def __cinit__(self, block, Py_ssize_t first, Py_ssize_t count, Py_ssize_t shortest):
        cdef int64_t position = block.position, room = block.room
        self.keys, self.target = checked(block.key), writable(block.content)
        self.at, self.capacity, self.room = <uint64_t>position, <uint64_t>self.target.shape[0], <uint64_t>room
        self.last, self.last_time, self.live = block.last, block.last_time, 0
        if count > shortest:
            raise ValueError("a column is shorter than the sequences")
        if not 0 <= first <= count or position < 0 or self.at > self.capacity or room < 0:
            raise ValueError(f"row {first} of {count} at {position} of {self.capacity}")
        if self.capacity < EMPTY_SIZE:
            raise ValueError(f"a block of {self.capacity} bytes")

    cdef inline int reserve(self, uint64_t number, uint64_t size) noexcept nogil:
        """Writes the skip records before a record. DONE if the record may follow them at `at`."""
        if number <= self.last or number > MAX_SEQUENCE:
            return BAD_SEQUENCE
        cdef uint64_t gap = number - self.last - 1 if self.at else 0
        if gap > MAX_SKIPS:
            return GAP
        if size > MAX_RECORD_SIZE:
            return TOO_LARGE
        if gap:
            if gap * EMPTY_SIZE > self.capacity - self.at:
                return BLOCK_TOO_SMALL
            write_skips(&self.target[0] + self.at, self.last + 1, gap, self.last_time, hash_of, self.keys.base)
            self.at += gap * EMPTY_SIZE
            self.last = number - 1
        if size > self.capacity - self.at or (self.at and self.at + size > self.room):
            return NO_ROOM
        return DONE

    cdef inline void add(
        self, uint64_t number, int64_t timestamp, uint64_t size, uint64_t subject_size, bint headers
    ) noexcept nogil:
        """Completes the record at `at` with its hash."""
        cdef uint8_t* p = &self.target[0] + self.at
        store64(p + size - HASH_SIZE, hash_record(hash_of, self.keys.base, p, size, subject_size, headers))
        self.at += size
        self.live += size
        self.last, self.last_time = number, timestamp

    cdef tuple close(self, block, Py_ssize_t row, int stop):
        if stop == OUTSIDE:
            raise ValueError("a message reaches beyond its buffer")
        if stop == BLOCK_TOO_SMALL:
            raise ValueError(f"the records do not fit into the block of {self.capacity} bytes at {self.at}")
        block.position, block.last, block.last_time = self.at, self.last, self.last_time
        return row, self.live, STOPS[stop]


def encode_records(batch, Py_ssize_t first, block, bint origin):

    cdef bytes channel = batch.channel, subject = batch.subject
    cdef Bytes source = Bytes(batch.buffer)
    cdef const uint64_t[::1] numbers = np.ascontiguousarray(batch.stream_sequence, np.uint64)
    cdef const uint64_t[::1] origins = np.ascontiguousarray(batch.sequence, np.uint64)
    cdef const int64_t[::1] times = np.ascontiguousarray(batch.timestamp, np.int64)
    cdef const int64_t[::1] starts = np.ascontiguousarray(batch.data_start, np.int64)
    cdef const uint32_t[::1] sizes = np.ascontiguousarray(batch.data_size, np.uint32)
    cdef const int64_t[::1] reply_starts = np.ascontiguousarray(batch.reply_start, np.int64)
    cdef const uint32_t[::1] reply_sizes = np.ascontiguousarray(batch.reply_size, np.uint32)
    cdef const uint8_t* channel_bytes = channel
    cdef const uint8_t* subject_bytes = subject
    cdef size_t channel_size = len(channel), subject_size = len(subject)
    cdef Py_ssize_t count = numbers.shape[0], row = first
    cdef BlockEnd end = BlockEnd(block, first, count, min(
        origins.shape[0], times.shape[0], starts.shape[0], sizes.shape[0], reply_starts.shape[0], reply_sizes.shape[0]
    ))
    cdef uint64_t size, header
    cdef uint8_t* p
    cdef uint8_t* q
    cdef int stop = DONE
    if subject_size > 0xFFFF:
        raise ValueError(f"a subject of {subject_size} bytes")
    with nogil:
        while row < count:
            header = header_size(channel_size, origins[row], times[row], reply_sizes[row], origin)
            size = EMPTY_SIZE + subject_size + sizes[row] + header + (LENGTH_SIZE if header else 0)
            stop = end.reserve(numbers[row], size)
            if stop == DONE and (
                not within(starts[row], sizes[row], source.size)
                or (reply_sizes[row] and not within(reply_starts[row], reply_sizes[row], source.size))
            ):
                stop = OUTSIDE
            if stop != DONE:
                break
            p = &end.target[0] + end.at
            store32(p, <uint32_t>size | (HAS_HEADERS if header else 0))
            store64(p + 4, numbers[row])
            store64(p + 12, <uint64_t>times[row])
            p[20] = <uint8_t>subject_size
            p[21] = <uint8_t>(subject_size >> 8)
            memcpy(p + HEAD_SIZE, subject_bytes, subject_size)
            q = p + HEAD_SIZE + subject_size
            if header:
                store32(q, <uint32_t>header)
                q = write_header(
                    q + LENGTH_SIZE, channel_bytes, channel_size, origins[row], times[row],
                    source.base + reply_starts[row], reply_sizes[row], origin
                )
            memcpy(q, source.base + starts[row], sizes[row])
            end.add(numbers[row], times[row], size, subject_size, header != 0)
            row += 1
    return end.close(block, row, stop)


def copy_records(batch, Py_ssize_t first, block):

    cdef Bytes source = Bytes(batch.buffer)
    cdef const uint64_t[::1] numbers = np.ascontiguousarray(batch.sequence, np.uint64)
    cdef const int64_t[::1] times = np.ascontiguousarray(batch.timestamp, np.int64)
    cdef const uint32_t[::1] lengths = np.ascontiguousarray(batch.length, np.uint32)
    cdef const int64_t[::1] starts = np.ascontiguousarray(batch.subject_start, np.int64)
    cdef const uint32_t[::1] subject_sizes = np.ascontiguousarray(batch.subject_size, np.uint32)
    cdef const int64_t[::1] header_starts = np.ascontiguousarray(batch.header_start, np.int64)
    cdef Py_ssize_t count = numbers.shape[0], row = first
    cdef BlockEnd end = BlockEnd(block, first, count, min(
        times.shape[0], lengths.shape[0], starts.shape[0], subject_sizes.shape[0], header_starts.shape[0]
    ))
    cdef int stop = DONE
    with nogil:
        while row < count:
            stop = end.reserve(numbers[row], lengths[row])
            if stop == DONE and not record_within(
                starts[row], lengths[row], subject_sizes[row], header_starts[row], source.size
            ):
                stop = OUTSIDE
            if stop != DONE:
                break
            memcpy(&end.target[0] + end.at, source.base + starts[row] - HEAD_SIZE, lengths[row])
            end.add(numbers[row], times[row], lengths[row], subject_sizes[row], header_starts[row] != 0)
            row += 1
    return end.close(block, row, stop)


def content_hashes(block, columns, key):

    cdef Bytes view = Bytes(block)
    cdef Bytes keys = checked(key)
    cdef const uint32_t[::1] lengths = np.ascontiguousarray(columns.length, np.uint32)
    cdef const int64_t[::1] starts = np.ascontiguousarray(columns.subject_start, np.int64)
    cdef const uint32_t[::1] subject_sizes = np.ascontiguousarray(columns.subject_size, np.uint32)
    cdef const int64_t[::1] header_starts = np.ascontiguousarray(columns.header_start, np.int64)
    cdef Py_ssize_t count = lengths.shape[0], row
    hashes = np.zeros(count, np.uint64)
    cdef uint64_t[::1] found = hashes
    cdef bint outside = count > min(starts.shape[0], subject_sizes.shape[0], header_starts.shape[0])
    if outside:
        raise ValueError("a column is shorter than the sizes")
    with nogil:
        for row in range(count):
            if not record_within(starts[row], lengths[row], subject_sizes[row], header_starts[row], view.size):
                outside = True
                break
            found[row] = hash_record(
                hash_of, keys.base, view.base + starts[row] - HEAD_SIZE, lengths[row], subject_sizes[row],
                header_starts[row] != 0,
            )
    if outside:
        raise ValueError("a record reaches beyond its buffer")
    return hashes


cdef struct FoundRecord:
    uint64_t size
    uint64_t subject  # size of the subject
    uint64_t header  # size of the headers
    uint64_t place  # where headers or payload begin
    bint headers


cdef inline int find_flaw(const uint8_t* p, uint64_t left, const uint8_t* key, FoundRecord* found) noexcept nogil:
    """Reads the sizes of a record, and checks its hash."""
    cdef uint32_t word
    cdef uint64_t needed
    if left < EMPTY_SIZE:
        return CUT
    word = load32(p)
    found.size = word & ~HAS_HEADERS
    found.headers = word & HAS_HEADERS != 0
    found.subject = p[20] | <uint64_t>p[21] << 8
    needed = EMPTY_SIZE + found.subject
    if found.size < needed or found.size > MAX_RECORD_SIZE:
        return BAD_LENGTH
    if found.size > left:
        return CUT
    found.header = 0
    found.place = HEAD_SIZE + found.subject
    if found.headers:
        if needed + LENGTH_SIZE > found.size:
            return BAD_LENGTH
        found.header = load32(p + found.place)
        found.place += LENGTH_SIZE
        if needed + LENGTH_SIZE + found.header > found.size:
            return BAD_LENGTH
    if hash_record(hash_of, key, p, found.size, found.subject, found.headers) != load64(p + found.size - HASH_SIZE):
        return BAD_HASH
    return FINE


def end_of_records(block, key):

    cdef Bytes view = Bytes(block)
    cdef Bytes keys = checked(key)
    cdef uint64_t at = 0
    cdef FoundRecord found
    with nogil:
        while at < view.size and find_flaw(view.base + at, view.size - at, keys.base, &found) == FINE:
            at += found.size
    return at


def scan_records(block, int64_t position, key, columns):

    cdef Bytes view = Bytes(block)
    cdef Bytes keys = checked(key)
    cdef uint64_t[::1] numbers = columns.sequence
    cdef uint8_t[::1] flags = columns.flags
    cdef int64_t[::1] times = columns.timestamp
    cdef uint32_t[::1] lengths = columns.length
    cdef int64_t[::1] subject_starts = columns.subject_start
    cdef uint32_t[::1] subject_sizes = columns.subject_size
    cdef int64_t[::1] header_starts = columns.header_start
    cdef uint32_t[::1] header_sizes = columns.header_size
    cdef int64_t[::1] data_starts = columns.data_start
    cdef uint32_t[::1] data_sizes = columns.data_size
    cdef Py_ssize_t capacity = columns.capacity, row = 0
    cdef uint64_t at = <uint64_t>position
    cdef FoundRecord found
    cdef const uint8_t* p
    cdef int flaw = FINE
    if position < 0 or at > view.size:
        raise ValueError(f"position {position} of {view.size}")
    if capacity > min(
        numbers.shape[0], flags.shape[0], times.shape[0], lengths.shape[0], subject_starts.shape[0],
        subject_sizes.shape[0], header_starts.shape[0], header_sizes.shape[0], data_starts.shape[0], data_sizes.shape[0]
    ):
        raise ValueError("a column is shorter than the capacity")
    with nogil:
        while at < view.size:
            if row == capacity:
                flaw = COLUMNS_FULL
                break
            p = view.base + at
            flaw = find_flaw(p, view.size - at, keys.base, &found)
            if flaw != FINE:
                break
            numbers[row] = load64(p + 4) & MAX_SEQUENCE
            flags[row] = <uint8_t>(load64(p + 4) >> 62)
            times[row] = <int64_t>load64(p + 12)
            lengths[row] = <uint32_t>found.size
            subject_starts[row] = <int64_t>(at + HEAD_SIZE)
            subject_sizes[row] = <uint32_t>found.subject
            header_starts[row] = <int64_t>(at + found.place) if found.headers else 0
            header_sizes[row] = <uint32_t>found.header
            data_starts[row] = <int64_t>(at + found.place + found.header)
            data_sizes[row] = <uint32_t>(found.size - HASH_SIZE - found.place - found.header)
            row += 1
            at += found.size
    return row, at, FLAWS[flaw]


def next_record(block, int64_t position, key, uint64_t budget):

    cdef Bytes view = Bytes(block)
    cdef Bytes keys = checked(key)
    cdef uint64_t at = <uint64_t>position, found = view.size, size, subject, needed, spent = 0
    cdef uint32_t word
    cdef const uint8_t* p
    if position < 0:
        raise ValueError(f"position {position}")
    with nogil:
        while at + EMPTY_SIZE <= view.size:
            p = view.base + at
            if load64(p) == 0:
                at += 5
                continue
            word = load32(p)
            size = word & ~HAS_HEADERS
            if size >= EMPTY_SIZE and size <= MAX_RECORD_SIZE and size <= view.size - at and not p[11] & HIGH_BITS:
                subject = p[20] | <uint64_t>p[21] << 8
                needed = EMPTY_SIZE + subject
                if word & HAS_HEADERS:
                    needed += LENGTH_SIZE
                    if needed <= size:
                        needed += load32(p + HEAD_SIZE + subject)
                if needed <= size:
                    spent += size
                    if spent > budget:
                        break
                    if hash_record(
                        hash_of, keys.base, p, size, subject, word & HAS_HEADERS
                    ) == load64(p + size - HASH_SIZE):
                        found = at
                        break
            at += 1
    return found


def subject_hashes(block, columns):

    cdef Bytes view = Bytes(block)
    cdef const int64_t[:] starts = columns.subject_start
    cdef const uint32_t[:] sizes = columns.subject_size
    cdef Py_ssize_t count = starts.shape[0], row
    cdef uint64_t value
    cdef uint32_t left
    cdef const uint8_t* p
    result = np.empty(count, np.uint64)
    cdef uint64_t[::1] out = result
    if sizes.shape[0] != count:
        raise ValueError(f"{count} subjects, {sizes.shape[0]} sizes")
    with nogil:
        for row in range(count):
            if not within(starts[row], sizes[row], view.size):
                out[row] = 0
                continue
            p = view.base + starts[row]
            left = sizes[row]
            value = FIRST_FACTOR ^ left
            while left >= 8:
                value = (value ^ load64(p)) * FIRST_FACTOR
                value ^= value >> 29
                p += 8
                left -= 8
            while left:
                value = (value ^ p[0]) * SECOND_FACTOR
                p += 1
                left -= 1
            value ^= value >> 32
            value *= FIRST_FACTOR
            out[row] = value ^ value >> 29
    return result


def decompress_s2(data, uint64_t limit):

    cdef Bytes view = Bytes(data)
    cdef const uint8_t* p = view.base
    cdef uint64_t end = view.size, at = 0, size = 0, done = 0, offset = 0, length, more, field, i
    cdef int shift = 0, tag
    cdef uint8_t* out
    cdef bint complete = False
    while at < end and shift < 35:
        size |= <uint64_t>(p[at] & 0x7F) << shift
        shift += 7
        at += 1
        if p[at - 1] < 0x80:
            complete = True
            break
    if not complete or size > limit:
        return b"", False
    cdef bytes result = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>size)
    out = <uint8_t*>PyBytes_AS_STRING(result)
    complete = False
    with nogil:
        while True:
            if at >= end:
                complete = done == size
                break
            tag = p[at] & 3
            field = p[at] >> 2
            if tag == 0:
                at += 1
                if field >= 60:
                    more = field - 59
                    if end - at < more:
                        break
                    field = 0
                    for i in range(more):
                        field |= <uint64_t>p[at + i] << 8 * i
                    at += more
                length = field + 1
                if length > end - at or length > size - done:
                    length = min(end - at, size - done)
                    memcpy(out + done, p + at, length)
                    done += length
                    break
                memcpy(out + done, p + at, length)
                at += length
                done += length
                continue
            if tag == 1:
                if end - at < 2:
                    break
                more = <uint64_t>(p[at] & 0xE0) << 3 | p[at + 1]
                field &= 7
                at += 2
                length = field + 4
                if more:
                    offset = more
                elif field >= 5:
                    more = field - 4
                    if end - at < more:
                        break
                    length = 8 if field == 5 else 260 if field == 6 else 65540
                    for i in range(more):
                        length += <uint64_t>p[at + i] << 8 * i
                    at += more
            else:
                more = 2 if tag == 2 else 4
                if end - at <= more:
                    break
                offset = 0
                for i in range(more):
                    offset |= <uint64_t>p[at + 1 + i] << 8 * i
                length = field + 1
                at += 1 + more
            if offset == 0 or offset > done or length > size - done:
                break
            if offset >= length:
                memcpy(out + done, out + done - offset, length)
            else:
                for i in range(length):
                    out[done + i] = out[done + i - offset]
            done += length
    return result if done == size else result[:done], complete


cdef uint8_t* put_record(
    uint8_t* p, uint64_t sequence, int64_t time, const void* subject, size_t subject_size, const void* header,
    size_t header_size, const void* payload, size_t payload_size, const uint8_t* key
) noexcept nogil:
    """Writes a record whose sizes were checked; returns its end."""
    cdef uint64_t size = EMPTY_SIZE + subject_size + header_size + payload_size
    cdef uint8_t* q
    if header_size:
        size += LENGTH_SIZE
    store32(p, <uint32_t>size | HAS_HEADERS if header_size else <uint32_t>size)
    store64(p + 4, sequence)
    store64(p + 12, <uint64_t>time)
    p[20] = <uint8_t>subject_size
    p[21] = <uint8_t>(subject_size >> 8)
    memcpy(p + HEAD_SIZE, subject, subject_size)
    q = p + HEAD_SIZE + subject_size
    if header_size:
        store32(q, <uint32_t>header_size)
        memcpy(q + LENGTH_SIZE, header, header_size)
        q += LENGTH_SIZE + header_size
    memcpy(q, payload, payload_size)
    store64(q + payload_size, hash_record(hash_of, key, p, size, subject_size, header_size != 0))
    return p + size


cdef struct Parts:
    # The parts of a record, counted from its start.
    uint64_t subject_size
    uint64_t body
    uint64_t header_size


cdef inline bint read_record(const uint8_t* p, uint64_t size, const uint8_t* key, Parts* parts) noexcept nogil:
    """Locates the parts of a record of this size; False if it is invalid, or its hash differs."""
    cdef uint32_t word
    cdef uint64_t subject, place
    if size < EMPTY_SIZE:
        return False
    word = load32(p)
    subject = p[20] | <uint64_t>p[21] << 8
    place = HEAD_SIZE + subject
    if (word & ~HAS_HEADERS) != size or place + HASH_SIZE > size:
        return False
    parts.subject_size = subject
    parts.header_size = 0
    if word & HAS_HEADERS:
        if place + LENGTH_SIZE + HASH_SIZE > size:
            return False
        parts.header_size = load32(p + place)
        place += LENGTH_SIZE
        if parts.header_size > size - HASH_SIZE - place:
            return False
    parts.body = place
    return hash_record(hash_of, key, p, size, subject, word & HAS_HEADERS) == load64(p + size - HASH_SIZE)


cdef int refuse(uint64_t subject_size, uint64_t size) except -1:
    if subject_size > 0xFFFF or size > MAX_RECORD_SIZE:
        raise ValueError(f"a record of {size} bytes")
    return 0


cdef const uint8_t* key_of(bytes key) except NULL:
    if PyBytes_GET_SIZE(key) != KEY_SIZE:
        raise ValueError(f"a key of {PyBytes_GET_SIZE(key)} bytes")
    return <const uint8_t*>PyBytes_AS_STRING(key)


def encode_record(
    uint64_t sequence, int64_t time, bytes subject not None, bytes header not None, bytes payload not None,
    bytes key not None
):

    cdef const uint8_t* keys = key_of(key)
    cdef size_t subject_size = PyBytes_GET_SIZE(subject), header_size = PyBytes_GET_SIZE(header)
    cdef size_t payload_size = PyBytes_GET_SIZE(payload)
    cdef uint64_t size = EMPTY_SIZE + subject_size + header_size + payload_size
    cdef bytes result
    if header_size:
        size += LENGTH_SIZE
    refuse(subject_size, size)
    result = PyBytes_FromStringAndSize(NULL, <Py_ssize_t>size)
    put_record(
        <uint8_t*>PyBytes_AS_STRING(result), sequence, time, PyBytes_AS_STRING(subject), subject_size,
        PyBytes_AS_STRING(header), header_size, PyBytes_AS_STRING(payload), payload_size, keys
    )
    return result


def decode_record(bytes data not None, bytes key not None):

    cdef const uint8_t* keys = key_of(key)
    cdef const char* p = PyBytes_AS_STRING(data)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    cdef Parts parts
    cdef uint64_t payload
    if not read_record(<const uint8_t*>p, <uint64_t>size, keys, &parts):
        return None
    payload = parts.body + parts.header_size
    return (
        PyBytes_FromStringAndSize(p + HEAD_SIZE, <Py_ssize_t>parts.subject_size),
        PyBytes_FromStringAndSize(p + parts.body, <Py_ssize_t>parts.header_size),
        PyBytes_FromStringAndSize(p + payload, size - HASH_SIZE - <Py_ssize_t>payload),
    )


cdef inline uint8_t* put_text(uint8_t* to, const void* text, size_t size) noexcept nogil:
    memcpy(to, text, size)
    return to + size


cdef inline uint8_t* put_padded(uint8_t* to, int64_t value, int digits) noexcept nogil:
    cdef int i
    for i in range(digits - 1, -1, -1):
        to[i] = <uint8_t>(48 + value % 10)
        value //= 10
    return to + digits


cdef uint8_t* put_time(uint8_t* to, int64_t time) noexcept nogil:
    """Writes a time (ns since 1970) as RFC 3339, without trailing zeros; returns its end."""
    cdef int64_t fraction = time % 1000000000
    cdef time_t seconds = <time_t>(time // 1000000000)
    cdef tm broken
    if fraction < 0:
        fraction += 1000000000
        seconds -= 1
    gmtime_r(&seconds, &broken)
    to = put_padded(to, broken.tm_year + 1900, 4)
    to[0] = 45
    to = put_padded(to + 1, broken.tm_mon + 1, 2)
    to[0] = 45
    to = put_padded(to + 1, broken.tm_mday, 2)
    to[0] = 84
    to = put_padded(to + 1, broken.tm_hour, 2)
    to[0] = 58
    to = put_padded(to + 1, broken.tm_min, 2)
    to[0] = 58
    to = put_padded(to + 1, broken.tm_sec, 2)
    if fraction:
        to[0] = 46
        to = put_padded(to + 1, fraction, 9)
        while to[-1] == 48:
            to -= 1
    to[0] = 90
    return to + 1


def direct_answer(bytes data not None, bytes key not None, bytes stream not None):

    cdef const uint8_t* keys = key_of(key)
    cdef const uint8_t* p = <const uint8_t*>PyBytes_AS_STRING(data)
    cdef const uint8_t* own = <const uint8_t*>b"NATS/1.0"
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    cdef size_t stream_size = <size_t>PyBytes_GET_SIZE(stream), own_size = 8
    cdef uint64_t sequence, payload
    cdef uint8_t time[TIME_SIZE]
    cdef size_t time_size
    cdef uint8_t* to
    cdef Parts parts
    cdef Py_ssize_t block_size
    cdef size_t payload_size
    cdef bytes answer
    if not read_record(p, <uint64_t>size, keys, &parts):
        return None
    payload = parts.body + parts.header_size
    payload_size = <size_t>(<uint64_t>size - HASH_SIZE - payload)
    if parts.header_size >= 4 and memcmp(p + payload - 4, b"\r\n\r\n", 4) == 0:
        own = p + parts.body
        own_size = <size_t>parts.header_size - 4
    sequence = load64(p + 4) & MAX_SEQUENCE
    time_size = <size_t>(put_time(time, <int64_t>load64(p + 12)) - time)
    block_size = <Py_ssize_t>(
        own_size + 15 + stream_size + 16 + parts.subject_size + 17 + unsigned_decimal_size(sequence) + 19 + time_size + 4
    )
    answer = PyBytes_FromStringAndSize(NULL, block_size + <Py_ssize_t>payload_size)
    to = put_text(<uint8_t*>PyBytes_AS_STRING(answer), own, own_size)
    to = put_text(put_text(to, b"\r\nNats-Stream: ", 15), PyBytes_AS_STRING(stream), stream_size)
    to = put_text(put_text(to, b"\r\nNats-Subject: ", 16), p + HEAD_SIZE, <size_t>parts.subject_size)
    to = write_unsigned_decimal(put_text(to, b"\r\nNats-Sequence: ", 17), sequence)
    to = put_text(put_text(to, b"\r\nNats-Time-Stamp: ", 19), time, time_size)
    put_text(put_text(to, b"\r\n\r\n", 4), p + payload, payload_size)
    return answer, block_size


def find_messages(block, const uint32_t[:] starts, const uint32_t[:] sizes, key, places):

    cdef Bytes view = Bytes(block)
    cdef Bytes keys = checked(key)
    cdef int32_t[:] subjects = places.subject
    cdef int32_t[:] subject_sizes = places.subject_size
    cdef int32_t[:] headers = places.header_size
    cdef int32_t[:] bodies = places.start
    cdef int32_t[:] body_sizes = places.size
    cdef Py_ssize_t count = starts.shape[0], row = 0
    cdef Parts parts
    if not count == sizes.shape[0] == subjects.shape[0] or count > min(
        subject_sizes.shape[0], headers.shape[0], bodies.shape[0], body_sizes.shape[0]
    ):
        raise ValueError(f"{count} records, {sizes.shape[0]} sizes, {subjects.shape[0]} places")
    if view.size > MOST:
        raise ValueError(f"{view.size} bytes of a block")
    with nogil:
        while row < count:
            if starts[row] + <uint64_t>sizes[row] > view.size:
                break
            if not read_record(view.base + starts[row], sizes[row], keys.base, &parts):
                break
            subjects[row] = <int32_t>(starts[row] + HEAD_SIZE)
            subject_sizes[row] = <int32_t>parts.subject_size
            headers[row] = <int32_t>parts.header_size
            bodies[row] = <int32_t>(starts[row] + parts.body)
            body_sizes[row] = <int32_t>(sizes[row] - HASH_SIZE - parts.body)
            row += 1
    return row
