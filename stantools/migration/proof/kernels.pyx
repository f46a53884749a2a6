# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Comparing messages, compiled. `kernels.pyi` says what each function promises.

It releases the interpreter lock. Every place in a buffer is compared with the buffer's size before it is read.
"""

from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcmp

from stantools.streamfiles._headers cimport header_size as block_size, write_header


cdef enum:
    # Members of `stream.Mark`.
    ABSENT = 1
    TIME = 2
    SUBJECT = 4
    HEADER = 8
    DATA = 16

    DONE = 0
    OUTSIDE = 1
    NO_MEMORY = 2


cdef struct Scratch:
    uint8_t* place
    size_t size


cdef inline bint inside(int64_t start, uint32_t size, int64_t total) noexcept nogil:
    return start >= 0 and start <= total and <int64_t>size <= total - start


cdef inline bint equal(const uint8_t* a, size_t a_size, const uint8_t* b, size_t b_size) noexcept nogil:
    return a_size == b_size and (a_size == 0 or memcmp(a, b, a_size) == 0)


cdef inline bint begins(const uint8_t* p, const uint8_t* end, const char* text, size_t size) noexcept nogil:
    return <size_t>(end - p) >= size and memcmp(p, text, size) == 0


cdef bint is_added(const uint8_t* p, const uint8_t* end) noexcept nogil:
    """Tells whether bytes are lines that publishing adds, and the empty line that ends a block (`Nats-Msg-Id`, `Nats-Expected-…`)."""
    cdef const uint8_t* first = p
    cdef const uint8_t* line_end
    cdef const uint8_t* colon
    while p < end:
        line_end = <const uint8_t*>memchr(p, 10, end - p)
        if line_end == NULL or line_end == p or (line_end - 1)[0] != 13:
            return False
        if line_end - p == 1:
            return line_end + 1 == end and p > first
        line_end -= 1  # at the carriage return; no other may be in the line
        if memchr(p, 13, line_end - p) != NULL:
            return False
        if begins(p, line_end, b"Nats-Msg-Id: ", 13):
            pass
        elif begins(p, line_end, b"Nats-Expected-", 14):
            colon = <const uint8_t*>memchr(p, 58, line_end - p)
            if colon == NULL or colon + 1 == line_end or colon[1] != 32:
                return False
        else:
            return False
        p = line_end + 2
    return False


cdef bint is_extended(const uint8_t* expected, size_t expected_size, const uint8_t* header, size_t size) noexcept nogil:
    if expected_size == 0:
        return begins(header, header + size, b"NATS/1.0\r\n", 10) and is_added(header + 10, header + size)
    expected_size -= 2
    return (
        size >= expected_size and memcmp(header, expected, expected_size) == 0
        and is_added(header + expected_size, header + size)
    )


cdef bint reserve(Scratch* scratch, size_t size) noexcept nogil:
    cdef uint8_t* place
    if size <= scratch.size:
        return True
    size += 4096
    place = <uint8_t*>realloc(scratch.place, size)
    if place == NULL:
        return False
    scratch.place, scratch.size = place, size
    return True


def compare_messages(
    batch, int64_t row, const uint8_t[::1] received not None, columns, int64_t other_row, *, bint origin, bint published,
    uint8_t[::1] marks, uint8_t[::1] other_marks
):
    cdef const uint8_t[::1] store = batch.buffer
    cdef const uint8_t[::1] subject = batch.subject
    cdef const uint8_t[::1] channel = batch.channel
    cdef const uint64_t[::1] sequence = batch.stream_sequence
    cdef const uint64_t[::1] own_sequence = batch.sequence
    cdef const int64_t[::1] timestamp = batch.timestamp
    cdef const int64_t[::1] data_start = batch.data_start
    cdef const uint32_t[::1] data_size = batch.data_size
    cdef const int64_t[::1] reply_start = batch.reply_start
    cdef const uint32_t[::1] reply_size = batch.reply_size
    cdef const uint64_t[::1] have_sequence = columns.sequence
    cdef const int64_t[::1] have_timestamp = columns.timestamp
    cdef const int64_t[::1] subject_start = columns.subject_start
    cdef const uint32_t[::1] subject_size = columns.subject_size
    cdef const int64_t[::1] header_start = columns.header_start
    cdef const uint32_t[::1] header_size = columns.header_size
    cdef const int64_t[::1] have_start = columns.data_start
    cdef const uint32_t[::1] have_size = columns.data_size
    cdef int64_t count = sequence.shape[0], other_count = have_sequence.shape[0]
    cdef int64_t store_size = store.shape[0], size = received.shape[0], channel_size = channel.shape[0]
    cdef const uint8_t* a = &store[0] if store_size else NULL
    cdef const uint8_t* b = &received[0] if size else NULL
    cdef const uint8_t* name = &channel[0] if channel_size else NULL
    cdef const uint8_t* wanted_subject = &subject[0] if subject.shape[0] else NULL
    cdef size_t wanted_subject_size = subject.shape[0], block
    cdef Scratch scratch
    cdef const uint8_t* header
    cdef uint8_t mark
    cdef bint was_published
    cdef int outcome = DONE
    if row < 0 or other_row < 0 or marks.shape[0] < count or other_marks.shape[0] < other_count:
        raise ValueError(f"rows {row} and {other_row}: negative, or without room for their marks")
    if own_sequence.shape[0] < count:
        raise ValueError("the columns of the batch are too short")
    scratch.place, scratch.size = NULL, 0
    with nogil:
        while row < count and other_row < other_count:
            if sequence[row] < have_sequence[other_row]:
                marks[row] = ABSENT
                row += 1
                continue
            if have_sequence[other_row] < sequence[row]:
                other_marks[other_row] = ABSENT
                other_row += 1
                continue
            if not (
                inside(data_start[row], data_size[row], store_size)
                and inside(reply_start[row], reply_size[row], store_size)
                and inside(subject_start[other_row], subject_size[other_row], size)
                and inside(header_start[other_row], header_size[other_row], size)
                and inside(have_start[other_row], have_size[other_row], size)
            ):
                outcome = OUTSIDE
                break
            mark = 0
            if not equal(b + subject_start[other_row], subject_size[other_row], wanted_subject, wanted_subject_size):
                mark |= SUBJECT
            block = block_size(channel_size, own_sequence[row], timestamp[row], reply_size[row], origin)
            if block:
                if not reserve(&scratch, block):
                    outcome = NO_MEMORY
                    break
                write_header(
                    scratch.place, name, channel_size, own_sequence[row], timestamp[row], a + reply_start[row],
                    reply_size[row], origin
                )
            header = b + header_start[other_row]
            was_published = False
            if not equal(header, header_size[other_row], scratch.place, block):
                was_published = published and is_extended(scratch.place, block, header, header_size[other_row])
                if not was_published:
                    mark |= HEADER
            if timestamp[row] != have_timestamp[other_row] and not was_published:
                mark |= TIME
            if not equal(a + data_start[row], data_size[row], b + have_start[other_row], have_size[other_row]):
                mark |= DATA
            marks[row] = mark
            other_marks[other_row] = 0
            row += 1
            other_row += 1
    free(scratch.place)
    if outcome == OUTSIDE:
        raise ValueError("columns point outside of their buffer")
    if outcome == NO_MEMORY:
        raise MemoryError
    return row, other_row
