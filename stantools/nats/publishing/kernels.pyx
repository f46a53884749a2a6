# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The publishing kernels, compiled. `kernels.pyi` has the contract of each function.

Every call releases the interpreter lock while it works. Before a byte is copied, the bytes of a row are checked
against the buffer, and the size of a frame against the room left.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

from stantools.streamfiles._headers cimport header_size, unsigned_decimal_size, write_header, write_unsigned_decimal


cdef bytes VERSION = b"NATS/1.0\r\n"
cdef bytes ID = b"Nats-Msg-Id: "
cdef bytes EXPECTED = b"\r\nNats-Expected-Last-Sequence: "
cdef bytes END = b"\r\n\r\n"
cdef bytes GOOD_START = b'{"stream":"'
cdef bytes SEQUENCE = b'"seq":'
cdef bytes DUPLICATE = b'"duplicate":'
cdef bytes TIME_NAME = b"Nats-Streaming-Timestamp: "
cdef bytes REPLY_NAME = b"Nats-Streaming-Reply: "

cdef struct Text:
    const uint8_t* start
    size_t size


cdef inline Text text_of(bytes value) noexcept:
    cdef Text text
    text.start = value
    text.size = len(value)
    return text


cdef inline uint8_t* put(uint8_t* p, Text text) noexcept nogil:
    memcpy(p, text.start, text.size)
    return p + text.size


cdef class Held:
    """A buffer, held for the length of a call."""

    cdef Py_buffer buffer
    cdef bint held

    def __cinit__(self, thing, bint writable):
        PyObject_GetBuffer(thing, &self.buffer, PyBUF_WRITABLE if writable else PyBUF_SIMPLE)
        self.held = True

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.buffer)


def encode_publishes(
    batch,
    int64_t row,
    int64_t rows,
    bytes reply,
    bytes identity,
    bint origin,
    bint exact,
    uint64_t shift,
    uint64_t largest,
    out,
):
    cdef const uint64_t[:] sequences = batch.stream_sequence
    cdef const uint64_t[:] own = batch.sequence
    cdef const int64_t[:] times = batch.timestamp
    cdef const int64_t[:] starts = batch.data_start
    cdef const uint32_t[:] sizes = batch.data_size
    cdef const int64_t[:] reply_starts = batch.reply_start
    cdef const uint32_t[:] reply_sizes = batch.reply_size
    cdef int64_t length = sequences.shape[0]
    if row < 0 or rows < 0 or rows > length or row > length - rows:
        raise ValueError(f"rows {row} to {row + rows} of {length}")
    if not (own.shape[0] == times.shape[0] == starts.shape[0] == sizes.shape[0] == length) or not (
        reply_starts.shape[0] == reply_sizes.shape[0] == length
    ):
        raise ValueError("the columns are not of the same length")
    cdef Held source = Held(batch.buffer, False), target = Held(out, True)
    cdef const uint8_t* base = <const uint8_t*>source.buffer.buf
    cdef uint64_t extent = <uint64_t>source.buffer.len
    cdef uint8_t* begin = <uint8_t*>target.buffer.buf
    cdef uint8_t* p = begin
    cdef uint64_t room = <uint64_t>target.buffer.len
    cdef Text channel = text_of(batch.channel), subject = text_of(batch.subject)
    cdef Text answer = text_of(reply), ident = text_of(identity)
    cdef Text version = text_of(VERSION), id_name = text_of(ID), expected = text_of(EXPECTED), end = text_of(END)
    cdef uint64_t fixed = id_name.size + ident.size + end.size
    cdef int64_t at = row, bad = -1
    cdef uint64_t sequence, block, own_block, total, frame, size, reply_size
    with nogil:
        while at < row + rows:
            sequence = sequences[at]
            if at > row and sequence != sequences[at - 1] + 1:
                break
            size = sizes[at]
            reply_size = reply_sizes[at]
            if (
                starts[at] < 0 or size > extent or <uint64_t>starts[at] > extent - size
                or reply_starts[at] < 0 or reply_size > extent or <uint64_t>reply_starts[at] > extent - reply_size
            ):
                bad = at
                break
            own_block = header_size(channel.size, own[at], times[at], reply_size, origin)
            # A message's own block ends with an empty line, which moves after the added lines.
            block = (own_block - 2 if own_block else version.size) + fixed
            block += unsigned_decimal_size(own[at])
            if exact:
                block += expected.size + unsigned_decimal_size(sequence - 1 - shift)
            total = block + size
            frame = 5 + subject.size + 1 + answer.size + unsigned_decimal_size(sequence) + 1
            frame += unsigned_decimal_size(block) + 1 + unsigned_decimal_size(total) + 2 + total + 2
            if total > largest or frame > room:
                break
            p = put_frame_line(p, subject, answer, sequence, block, total)
            if own_block:
                p = write_header(
                    p, channel.start, channel.size, own[at], times[at], base + reply_starts[at], reply_size, origin
                ) - 2
            else:
                p = put(p, version)
            p = put(p, id_name)
            p = put(p, ident)
            p = write_unsigned_decimal(p, own[at])
            if exact:
                p = put(p, expected)
                p = write_unsigned_decimal(p, sequence - 1 - shift)
            p = put(p, end)
            memcpy(p, base + starts[at], size)
            p += size
            p[0] = b"\r"
            p[1] = b"\n"
            p += 2
            room -= frame
            at += 1
    if bad >= 0:
        raise ValueError(f"row {bad} points out of the buffer")
    return at - row, p - begin


cdef inline uint8_t* put_frame_line(
    uint8_t* p, Text subject, Text answer, uint64_t sequence, uint64_t block, uint64_t total
) noexcept nogil:
    memcpy(p, b"HPUB ", 5)
    p = put(p + 5, subject)
    p[0] = b" "
    p = put(p + 1, answer)
    p = write_unsigned_decimal(p, sequence)
    p[0] = b" "
    p = write_unsigned_decimal(p + 1, block)
    p[0] = b" "
    p = write_unsigned_decimal(p + 1, total)
    p[0] = b"\r"
    p[1] = b"\n"
    return p + 2


def read_origins(buffer, frames, int64_t[:] times, int64_t[:] reply_starts, uint32_t[:] reply_sizes):
    cdef const int64_t[:] starts = frames.header_start
    cdef const uint32_t[:] sizes = frames.header_size
    cdef int64_t length = starts.shape[0], row = 0, replies = 0
    if not (sizes.shape[0] == times.shape[0] == reply_starts.shape[0] == reply_sizes.shape[0] == length):
        raise ValueError("the columns are not of the same length")
    cdef Held source = Held(buffer, False)
    cdef const uint8_t* base = <const uint8_t*>source.buffer.buf
    cdef uint64_t extent = <uint64_t>source.buffer.len
    cdef Text time_name = text_of(TIME_NAME), reply_name = text_of(REPLY_NAME)
    cdef const uint8_t* p
    cdef const uint8_t* end
    cdef const uint8_t* stop
    cdef int64_t time
    cdef bint timed, replied
    with nogil:
        while row < length:
            if starts[row] < 0 or sizes[row] > extent or <uint64_t>starts[row] > extent - sizes[row]:
                break
            reply_starts[row] = 0
            reply_sizes[row] = 0
            timed = replied = False
            end = base + starts[row] + sizes[row]
            # A line begins after the end of another one.
            p = line_end(base + starts[row], end)
            while p != NULL and not (timed and replied):
                p += 2
                stop = line_end(p, end)
                if stop == NULL:
                    break
                if not timed and is_named(p, stop, time_name):
                    time = decimal(p + time_name.size, stop)
                    if time >= 0:
                        timed = True
                        times[row] = time
                elif not replied and is_named(p, stop, reply_name):
                    p += reply_name.size
                    if memchr(p, b"\r", stop - p) == NULL:
                        replied = True
                        if stop > p:
                            reply_starts[row] = p - base
                            reply_sizes[row] = <uint32_t>(stop - p)
                            replies += 1
                p = stop
            row += 1
    if row < length:
        raise ValueError(f"row {row} points out of the buffer")
    return replies


cdef inline const uint8_t* line_end(const uint8_t* p, const uint8_t* end) noexcept nogil:
    """Start of the next line end; NULL if there is none."""
    while end - p >= 2:
        p = <const uint8_t*>memchr(p, b"\r", end - p - 1)
        if p == NULL or p[1] == b"\n":
            return p
        p += 1
    return NULL


cdef inline bint is_named(const uint8_t* p, const uint8_t* end, Text name) noexcept nogil:
    return <size_t>(end - p) >= name.size and memcmp(p, name.start, name.size) == 0


cdef inline int64_t decimal(const uint8_t* p, const uint8_t* end) noexcept nogil:
    """A number of at most 19 digits, which fits; -1 if invalid."""
    cdef int64_t value = 0
    if end == p or end - p > 19 or (end - p == 19 and p[0] == b"9"):
        return -1
    while p < end:
        if p[0] < b"0" or p[0] > b"9":
            return -1
        value = 10 * value + (p[0] - c"0")
        p += 1
    return value


def check_answers(buffer, frames, int64_t row, bytes reply, uint64_t expected, bint exact):
    cdef const int64_t[:] starts = frames.subject_start
    cdef const uint32_t[:] sizes = frames.subject_size
    cdef const uint32_t[:] header_sizes = frames.header_size
    cdef const int64_t[:] data_starts = frames.data_start
    cdef const uint32_t[:] data_sizes = frames.data_size
    cdef int64_t length = starts.shape[0]
    if row < 0 or row > length:
        raise ValueError(f"row {row} of {length}")
    if not (sizes.shape[0] == header_sizes.shape[0] == data_starts.shape[0] == data_sizes.shape[0] == length):
        raise ValueError("the columns are not of the same length")
    cdef Held source = Held(buffer, False)
    cdef const uint8_t* base = <const uint8_t*>source.buffer.buf
    cdef uint64_t extent = <uint64_t>source.buffer.len
    cdef Text prefix = text_of(reply), good = text_of(GOOD_START), name = text_of(SEQUENCE)
    cdef Text repeated = text_of(DUPLICATE)
    cdef bint outside = False
    cdef uint64_t place, stored = 0, duplicates = 0
    cdef const uint8_t* rest
    cdef const uint8_t* subject
    with nogil:
        while row < length:
            if (
                starts[row] < 0 or sizes[row] > extent or <uint64_t>starts[row] > extent - sizes[row]
                or data_starts[row] < 0 or data_sizes[row] > extent or <uint64_t>data_starts[row] > extent - data_sizes[row]
            ):
                outside = True
                break
            subject = base + starts[row]
            if sizes[row] >= prefix.size and memcmp(subject, prefix.start, prefix.size) == 0:
                if header_sizes[row] or not is_number(subject + prefix.size, sizes[row] - prefix.size, expected):
                    break
                rest = stored_at(base + data_starts[row], data_sizes[row], good, name, &place)
                if rest == NULL or (exact and place != expected):
                    break
                stored = place
                duplicates += is_true(rest, base + data_starts[row] + data_sizes[row], repeated)
                expected += 1
            row += 1
    if outside:
        raise ValueError(f"row {row} points out of the buffer")
    return row, expected, stored, duplicates


cdef inline bint is_number(const uint8_t* p, size_t size, uint64_t number) noexcept nogil:
    """Whether these bytes are the number as `%d` writes it."""
    cdef uint8_t text[20]
    cdef size_t digits = unsigned_decimal_size(number)
    if size != digits:
        return False
    write_unsigned_decimal(text, number)
    return memcmp(p, text, digits) == 0


cdef inline const uint8_t* stored_at(
    const uint8_t* p, size_t size, Text good, Text name, uint64_t* sequence
) noexcept nogil:
    """The rest of an answer after the sequence of the stored message; NULL if it has none."""
    cdef const uint8_t* end = p + size
    cdef const uint8_t* begin
    cdef uint64_t value = 0
    if size < good.size or memcmp(p, good.start, good.size) != 0:
        return NULL
    p = after_name(p + good.size, end, name)
    begin = p
    while p != NULL and p < end and b"0" <= p[0] <= b"9":
        value = 10 * value + (p[0] - c"0")
        p += 1
    # Another notation, or a number that does not fit, is not read back as it was written.
    if p == begin or not is_number(begin, p - begin, value):
        return NULL
    sequence[0] = value
    return p


cdef inline const uint8_t* after_name(const uint8_t* p, const uint8_t* end, Text name) noexcept nogil:
    """The value after a name; NULL without the name."""
    while not is_named(p, end, name):
        if p == end:
            return NULL
        p += 1
    p += name.size
    while p < end and p[0] == b" ":
        p += 1
    return p


cdef inline bint is_true(const uint8_t* p, const uint8_t* end, Text name) noexcept nogil:
    p = after_name(p, end, name)
    return p != NULL and p < end and p[0] == b"t"
