# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The compiled kernels of streams; `kernels.pyi` documents each function.

A batch takes some microseconds, so the interpreter lock is kept. The positions in a table are checked against the
buffer before they are used, and before anything is changed.
"""

from cpython.buffer cimport PyBUF_ND, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp

from stantools.streamfiles.kernels cimport key_of, put_record, refuse


cdef enum:
    # Columns of the table of frames.
    SUBJECT = 0
    SUBJECT_SIZE = 1
    HEADER_SIZE = 4
    PAYLOAD = 5
    PAYLOAD_SIZE = 6
    WIDTH = 8

    EMPTY_SIZE = 30  # bytes of an empty record
    LENGTH_SIZE = 4  # bytes that say how many those of the headers are

cdef uint64_t TOMBSTONE = <uint64_t>1 << 62


cdef class Held:
    """A buffer, held for the length of a call."""

    cdef Py_buffer buffer
    cdef bint held

    def __cinit__(self, of, int flags):
        PyObject_GetBuffer(of, &self.buffer, flags)
        self.held = True

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.buffer)


cdef const int32_t* rows_of(Held table, Py_ssize_t begin, Py_ssize_t end) except NULL:
    cdef Py_buffer* buffer = &table.buffer
    if (
        buffer.ndim != 2 or buffer.itemsize != 4 or buffer.shape[1] != WIDTH or not 0 <= begin < end <= buffer.shape[0]
    ):
        raise ValueError(f"rows {begin} to {end} lie outside")
    return <const int32_t*>buffer.buf + begin * WIDTH


def measure_rows(frames, Py_ssize_t begin, Py_ssize_t end):
    cdef Held table = Held(frames, PyBUF_ND)
    cdef const int32_t* row = rows_of(table, begin, end)
    cdef int64_t headers = 0, payloads = 0, subjects = 0, largest = 0, longest = 0
    cdef Py_ssize_t i
    for i in range(end - begin):
        headers += row[HEADER_SIZE] != 0
        payloads += row[PAYLOAD_SIZE]
        subjects += row[SUBJECT_SIZE]
        largest = max(largest, <int64_t>row[PAYLOAD_SIZE])
        longest = max(longest, <int64_t>row[SUBJECT_SIZE])
        row += WIDTH
    return (headers, payloads, subjects, largest, longest)


cdef int64_t size_at(const int32_t* row, uint64_t limit) except -1:
    """Returns the size of a row's record, after checks of its positions."""
    cdef uint64_t size
    if (
        row[SUBJECT] < 0 or row[SUBJECT_SIZE] < 0 or row[PAYLOAD] < 0 or not 0 <= row[HEADER_SIZE] <= row[PAYLOAD_SIZE]
        or <uint64_t>row[SUBJECT] + <uint64_t>row[SUBJECT_SIZE] > limit
        or <uint64_t>row[PAYLOAD] + <uint64_t>row[PAYLOAD_SIZE] > limit
    ):
        raise ValueError("a message reaches beyond its buffer")
    size = EMPTY_SIZE + <uint64_t>row[SUBJECT_SIZE] + <uint64_t>row[PAYLOAD_SIZE]
    if row[HEADER_SIZE]:
        size += LENGTH_SIZE
    refuse(<uint64_t>row[SUBJECT_SIZE], size)
    return <int64_t>size


cdef inline bint same_subject(const uint8_t* base, const int32_t* one, const int32_t* other) noexcept nogil:
    return one[SUBJECT_SIZE] == other[SUBJECT_SIZE] and memcmp(
        base + one[SUBJECT], base + other[SUBJECT], <size_t>one[SUBJECT_SIZE]
    ) == 0


def enter_rows(
    contents, buffer, frames, Py_ssize_t begin, Py_ssize_t end, int64_t time, bytes key not None, int64_t place,
    int64_t room, int64_t most
):
    cdef Held table = Held(frames, PyBUF_ND)
    cdef Held source = Held(buffer, PyBUF_SIMPLE)
    cdef const int32_t* head = rows_of(table, begin, end)
    cdef const int32_t* row = head
    cdef const uint8_t* base = <const uint8_t*>source.buffer.buf
    cdef const uint8_t* keys = key_of(key)
    cdef uint64_t limit = <uint64_t>source.buffer.len
    cdef Py_ssize_t count = 0, i, run
    cdef int64_t total = 0, size, held, first = contents.last + 1
    cdef bint full = False
    cdef bytes records, name
    cdef uint8_t* p
    cdef PyObject* known
    cdef dict subjects = contents.subjects
    cdef list over = []
    cdef list segments = contents.segments
    cdef object segment = segments[len(segments) - 1]
    for i in range(end - begin):
        size = size_at(row, limit)
        full = full or (i > 0 and total + size > room)
        if not full:
            total += size
            count += 1
        row += WIDTH
    records = PyBytes_FromStringAndSize(NULL, total)
    cdef bytes numbers = PyBytes_FromStringAndSize(NULL, 4 * count)
    cdef bytes sizes = PyBytes_FromStringAndSize(NULL, 4 * count)
    cdef bytes places = PyBytes_FromStringAndSize(NULL, 4 * count)
    cdef bytes times = PyBytes_FromStringAndSize(NULL, 8 * count)
    cdef uint32_t* number_at = <uint32_t*>PyBytes_AS_STRING(numbers)
    cdef uint32_t* sizes_at = <uint32_t*>PyBytes_AS_STRING(sizes)
    cdef uint32_t* places_at = <uint32_t*>PyBytes_AS_STRING(places)
    cdef int64_t* times_at = <int64_t*>PyBytes_AS_STRING(times)
    p = <uint8_t*>PyBytes_AS_STRING(records)
    with nogil:
        row = head
        for i in range(count):
            sizes_at[i] = EMPTY_SIZE + <uint32_t>row[SUBJECT_SIZE] + <uint32_t>row[PAYLOAD_SIZE]
            if row[HEADER_SIZE]:
                sizes_at[i] += LENGTH_SIZE
            places_at[i] = <uint32_t>place
            place += sizes_at[i]
            times_at[i] = time
            p = put_record(
                p, <uint64_t>(first + i), time, base + row[SUBJECT], <size_t>row[SUBJECT_SIZE], base + row[PAYLOAD],
                <size_t>row[HEADER_SIZE], base + row[PAYLOAD] + row[HEADER_SIZE],
                <size_t>(row[PAYLOAD_SIZE] - row[HEADER_SIZE]), keys
            )
            row += WIDTH
    i = 0
    while i < count:
        row = head + i * WIDTH
        run = i + 1
        while run < count and same_subject(base, row, head + run * WIDTH):
            run += 1
        name = PyBytes_FromStringAndSize(<const char*>base + row[SUBJECT], row[SUBJECT_SIZE])
        known = PyDict_GetItem(subjects, name)
        entry = <object>known if known != NULL else contents.named(name)
        held = entry.count
        if not held:
            entry.first = first + i
        held += run - i
        entry.count = held
        entry.last = first + run - 1
        if 0 < most < held and entry not in over:
            over.append(entry)
        size = entry.number
        while i < run:
            number_at[i] = <uint32_t>size
            i += 1
    segment.subjects.frombytes(numbers)
    segment.sizes.frombytes(sizes)
    segment.places.frombytes(places)
    segment.times.frombytes(times)
    segment.live += count
    segment.bytes += total
    if not contents.messages:
        contents.first, contents.first_time = first, time
    contents.messages += count
    contents.bytes += total
    contents.last, contents.last_time = first + count - 1, time
    return records, over


cdef class Losses:
    """The losses of a segment, which `settle` applies to it."""

    cdef object contents, segment
    cdef list records
    cdef Held held, held_times
    cdef uint32_t* sizes
    cdef const int64_t* times
    cdef int64_t first, rows, went, bytes

    def __cinit__(self, contents, segment):
        self.contents, self.segment = contents, segment
        self.records = segment.records
        self.held = Held(segment.sizes, PyBUF_WRITABLE)
        self.sizes = <uint32_t*>self.held.buffer.buf
        self.held_times = Held(segment.times, PyBUF_SIMPLE)
        self.times = <const int64_t*>self.held_times.buffer.buf
        self.first = segment.first
        self.rows = self.held.buffer.len // 4

    cdef inline bint has(self, int64_t sequence) noexcept:
        cdef int64_t row = sequence - self.first
        return 0 <= row < self.rows and self.sizes[row] != 0

    cdef int64_t drop(self, int64_t sequence) except? -1:
        """Removes a message. Returns its time."""
        cdef int64_t row = sequence - self.first
        self.went += 1
        self.bytes += self.sizes[row]
        self.sizes[row] = 0
        if self.records:
            self.records[row] = None
        return self.times[row]

    cdef int settle(self, list touched) except -1:
        cdef Py_ssize_t last
        if self.went:
            self.segment.live -= self.went
            self.segment.bytes -= self.bytes
            self.contents.messages -= self.went
            self.contents.bytes -= self.bytes
            last = len(touched) - 1
            if last >= 0 and touched[last][0] is self.segment:
                touched[last] = (self.segment, touched[last][1] + self.went)
            else:
                touched.append((self.segment, self.went))
            self.went = self.bytes = 0
        return 0

    cdef bint advance(self) except -1:
        """Sets the first message of the contents if it is in this segment. Returns whether it is."""
        cdef int64_t row = <int64_t>self.contents.first - self.first
        if not 0 <= row < self.rows:
            return False
        while row < self.rows and not self.sizes[row]:
            row += 1
        if row == self.rows:
            return False
        self.contents.first = self.first + row
        self.contents.first_time = self.segment.times[row]
        return True


def drop_firsts(contents, list over not None, int64_t most, bytes key not None):
    cdef list gone = [], touched = []
    cdef list segments = contents.segments
    # Usually the last segment loses them.
    cdef Losses losses = Losses(contents, segments[len(segments) - 1])
    cdef int64_t sequence, count, time, start = contents.first
    cdef Py_ssize_t most_gone = 0
    cdef bint begins = False
    cdef const uint8_t* keys = key_of(key)
    for entry in over:
        count = entry.count
        most_gone += max(count - most, 0)
    cdef bytes records = PyBytes_FromStringAndSize(NULL, most_gone * EMPTY_SIZE)
    cdef bytes numbers = PyBytes_FromStringAndSize(NULL, most_gone * 8)
    cdef uint8_t* p = <uint8_t*>PyBytes_AS_STRING(records)
    cdef int64_t* number_at = <int64_t*>PyBytes_AS_STRING(numbers)
    for entry in over:
        count = entry.count
        while count > most:
            sequence = entry.first
            if not losses.has(sequence):
                losses.settle(touched)
                sequence = contents.first_of(entry)
                if not losses.has(sequence):
                    losses = Losses(contents, contents.locate(sequence)[0])
            time = losses.drop(sequence)
            p = put_record(p, <uint64_t>sequence | TOMBSTONE, time, p, 0, p, 0, p, 0, keys)
            number_at[0] = sequence
            number_at += 1
            begins = begins or sequence == start
            gone.append((sequence, entry.number))
            count -= 1
            entry.count = count
            if count == 1:
                entry.first = entry.last
    losses.settle(touched)
    if begins and not losses.advance():
        contents.advance()
    return gone, touched, records, numbers
