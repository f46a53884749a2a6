# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The fold of a subs.dat, compiled. `folding.pyi` has the contract of each function.

Subscriptions are rows in order of creation, found by a table of row numbers with open addressing.
Pending sequences are pairs with the *epoch* of their subscription, in another such table. Each New record begins a new
epoch, which removes all earlier pending sequences without a search; removed rows and pairs are cleared when a table is
full.
"""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc

from stantools.format._fields cimport any_varint, varint_size

import os
from array import array
from collections import namedtuple

from stantools.format.layout import SubFlag, SubRecord

Folded = namedtuple("Folded", ("id", "place", "last_sent", "flags", "first", "pending"), module=__name__)

cdef enum:
    NEW = 1
    UPDATE = 2
    DELETE = 3
    ACK = 4
    MSG = 5

    HEADER_SIZE = 8
    MOST = 0x7FFFFFF0  # rows, and epochs

    HAS_CLIENT = 1
    HAS_GROUP = 2
    HAS_DURABLE = 4
    IS_DURABLE = 8
    IS_CLOSED = 16
    USUAL = 32
    MOVED = 64

cdef enum:
    EMPTY = 0
    REMOVED = 0xFFFFFFFF

assert (NEW, UPDATE, DELETE, ACK, MSG) == tuple(SubRecord)
assert (HAS_CLIENT, HAS_GROUP, HAS_DURABLE, IS_DURABLE, IS_CLOSED, USUAL, MOVED) == tuple(SubFlag)

cdef extern from *:
    """
    #include <stdlib.h>
    #if defined(__GLIBC__)
    #include <malloc.h>
    /* The allocator keeps more and more freed memory; a fold needs large pieces for a short time. It keeps some
     * megabytes: otherwise each array of a batch would use new pages, which the system must clear. */
    static void give_back(void) { mallopt(M_MMAP_THRESHOLD, 1 << 20); mallopt(M_TRIM_THRESHOLD, 4 << 20); }
    #else
    static void give_back(void) { }
    #endif
    """
    void give_back()

give_back()

#: random, so that ids cannot be chosen to collide
cdef uint64_t SEED = int.from_bytes(os.urandom(8), "little")

cdef struct Row:
    uint64_t id
    int64_t place
    uint64_t last_sent
    uint32_t epoch  # 0: deleted
    uint32_t pending
    uint8_t flags


cdef inline uint64_t mix(uint64_t value) noexcept nogil:
    value += SEED
    value = (value ^ (value >> 30)) * <uint64_t>0xBF58476D1CE4E5B9
    value = (value ^ (value >> 27)) * <uint64_t>0x94D049BB133111EB
    return value ^ (value >> 31)


cdef inline const uint8_t* usual_number(const uint8_t* p, const uint8_t* end, uint64_t* value) noexcept nogil:
    """A varint above zero in as few bytes as possible."""
    cdef const uint8_t* begin = p
    p = any_varint(p, end, value)
    if p == NULL or (p - 1)[0] == 0 or (p - begin == 10 and (p - 1)[0] != 1):
        return NULL
    return p


cdef inline bint usual_subscription(const uint8_t* p, const uint8_t* end, Row* row) noexcept nogil:
    """Reads a subscription as the server writes it, with an id and inboxes; else False."""
    cdef uint64_t value
    cdef uint8_t tag
    cdef int field, last = 0
    cdef bint inbox = False, ack_inbox = False
    row.id = row.last_sent = 0
    row.flags = USUAL
    while p != end:
        tag = p[0]
        field = tag >> 3
        if field <= last or field > 11:
            return False
        last = field
        if (tag & 7) != (2 if field in (2, 3, 4, 5, 8) else 0):
            return False
        p = usual_number(p + 1, end, &value)
        if p == NULL:
            return False
        if field == 1:
            row.id = value
        elif field == 9:
            row.last_sent = value
        elif field == 6 or field == 7:
            if value > 0x7FFFFFFF:
                return False
        elif field >= 10:
            if value != 1:
                return False
            row.flags |= IS_DURABLE if field == 10 else IS_CLOSED
        else:
            if value > <size_t>(end - p):
                return False
            p += value
            if field == 2:
                row.flags |= HAS_CLIENT
            elif field == 3:
                row.flags |= HAS_GROUP
            elif field == 8:
                row.flags |= HAS_DURABLE
            elif field == 4:
                inbox = True
            else:
                ack_inbox = True
    return row.id != 0 and inbox and ack_inbox


cdef class Fold:
    cdef Row* rows
    cdef int64_t count, room, deleted  # rows, deleted ones included
    cdef int32_t* slots  # row + 1, 0: empty
    cdef uint64_t slot_mask
    cdef uint32_t epoch
    cdef uint64_t* sequences
    cdef uint32_t* epochs  # of the pairs
    cdef uint64_t pair_mask
    cdef int64_t used  # pairs, removed ones included
    cdef uint64_t counted, gone, highest

    def __cinit__(self):
        self.room = 16
        self.slot_mask = 31
        self.pair_mask = 63
        self.rows = <Row*>malloc(self.room * sizeof(Row))
        self.slots = <int32_t*>calloc(self.slot_mask + 1, sizeof(int32_t))
        self.sequences = <uint64_t*>malloc((self.pair_mask + 1) * sizeof(uint64_t))
        self.epochs = <uint32_t*>calloc(self.pair_mask + 1, sizeof(uint32_t))
        if self.rows == NULL or self.slots == NULL or self.sequences == NULL or self.epochs == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.rows)
        free(self.slots)
        free(self.sequences)
        free(self.epochs)

    @property
    def records(self):
        return self.counted

    @property
    def dead(self):
        return self.gone

    @property
    def max_id(self):
        return self.highest

    cdef int64_t find(self, uint64_t number) noexcept nogil:
        """The row of a known id, -1 for others."""
        cdef uint64_t slot = mix(number) & self.slot_mask
        cdef int32_t row
        while True:
            row = self.slots[slot]
            if row == 0:
                return -1
            if self.rows[row - 1].id == number and self.rows[row - 1].epoch:
                return row - 1
            slot = (slot + 1) & self.slot_mask

    cdef void enter(self, int64_t row) noexcept nogil:
        cdef uint64_t slot = mix(self.rows[row].id) & self.slot_mask
        while self.slots[slot]:
            slot = (slot + 1) & self.slot_mask
        self.slots[slot] = <int32_t>(row + 1)

    cdef int64_t add(self) except -1 nogil:
        """A new row at the end; the caller sets its epoch."""
        cdef int64_t row, kept = 0
        cdef int32_t* slots
        cdef Row* rows
        if self.count == self.room:
            if self.deleted * 2 < self.count:
                rows = <Row*>realloc(self.rows, 2 * self.room * sizeof(Row)) if self.room < MOST // 2 else NULL
                slots = <int32_t*>calloc(2 * (self.slot_mask + 1), sizeof(int32_t))
                if rows != NULL:
                    self.rows = rows
                if rows == NULL or slots == NULL:
                    free(slots)
                    with gil:
                        raise MemoryError("too many subscriptions")
                self.room *= 2
                free(self.slots)
                self.slots = slots
                self.slot_mask = 2 * self.slot_mask + 1
            else:
                for slot in range(self.slot_mask + 1):
                    self.slots[slot] = 0
            for row in range(self.count):
                if self.rows[row].epoch:
                    self.rows[kept] = self.rows[row]
                    self.enter(kept)
                    kept += 1
            self.count = kept
            self.deleted = 0
        self.count += 1
        return self.count - 1

    cdef int begin_epoch(self, Row* row) except -1 nogil:
        if self.epoch >= MOST:
            with gil:
                raise OverflowError("too many subscriptions in one log")
        self.epoch += 1
        row.epoch = self.epoch
        row.pending = 0
        return 0

    cdef int put_row(self, int kind, const Row* new) except -1 nogil:
        cdef int64_t at = self.find(new.id)
        cdef Row* row
        self.counted += 1
        self.highest = max(self.highest, new.id)
        if at < 0:
            at = self.add()
            self.rows[at].id = new.id
            self.rows[at].epoch = 0
            self.enter(at)
            row = &self.rows[at]
            self.begin_epoch(row)
        else:
            row = &self.rows[at]
            if kind == UPDATE:
                self.gone += 1
            else:
                self.begin_epoch(row)
        row.place = new.place
        row.last_sent = new.last_sent
        row.flags = new.flags
        return 0

    cdef void delete_row(self, uint64_t number) noexcept nogil:
        cdef int64_t at = self.find(number)
        self.highest = max(self.highest, number)
        if at >= 0:
            self.gone += 1 + <uint64_t>self.rows[at].pending
            self.rows[at].epoch = 0
            self.deleted += 1

    cdef uint64_t pair(self, uint32_t epoch, uint64_t sequence, int64_t* free_slot) noexcept nogil:
        """The slot of a pair, or the empty one where the search ends; `free_slot`: a removed one on the way, or -1."""
        cdef uint64_t slot = mix(sequence ^ (<uint64_t>epoch << 32 | epoch)) & self.pair_mask
        free_slot[0] = -1
        while self.epochs[slot] != EMPTY:
            if self.epochs[slot] == epoch and self.sequences[slot] == sequence:
                return slot
            if self.epochs[slot] == REMOVED and free_slot[0] < 0:
                free_slot[0] = <int64_t>slot
            slot = (slot + 1) & self.pair_mask
        return slot

    cdef int clear_pairs(self) except -1 nogil:
        """Makes room: drops removed pairs and those of past epochs, and grows if that is not enough."""
        cdef uint8_t* alive = <uint8_t*>calloc(<size_t>self.epoch + 1, 1)
        cdef uint64_t* sequences = self.sequences
        cdef uint32_t* epochs = self.epochs
        cdef uint64_t size = self.pair_mask + 1, slot, wanted = 64, at
        cdef int64_t kept = 0, row, ignored
        if alive == NULL:
            with gil:
                raise MemoryError
        for row in range(self.count):
            alive[self.rows[row].epoch] = 1
        alive[0] = 0
        for slot in range(size):
            if epochs[slot] != REMOVED and alive[epochs[slot]]:
                kept += 1
        while wanted < 3 * <uint64_t>kept:
            wanted *= 2
        self.sequences = <uint64_t*>malloc(wanted * sizeof(uint64_t))
        self.epochs = <uint32_t*>calloc(wanted, sizeof(uint32_t))
        if self.sequences == NULL or self.epochs == NULL:
            free(self.sequences)
            free(self.epochs)
            self.sequences, self.epochs = sequences, epochs
            free(alive)
            with gil:
                raise MemoryError
        self.pair_mask = wanted - 1
        for slot in range(size):
            if epochs[slot] != REMOVED and alive[epochs[slot]]:
                at = self.pair(epochs[slot], sequences[slot], &ignored)
                self.epochs[at] = epochs[slot]
                self.sequences[at] = sequences[slot]
        self.used = kept
        free(alive)
        free(sequences)
        free(epochs)
        return 0

    cdef int flow_row(self, int kind, uint64_t number, uint64_t sequence) except -1 nogil:
        cdef int64_t at = self.find(number), free_slot
        cdef uint64_t slot
        cdef Row* row
        if at < 0:
            return 0
        row = &self.rows[at]
        if kind == MSG and 4 * (self.used + 1) > 3 * <int64_t>(self.pair_mask + 1):
            self.clear_pairs()
        slot = self.pair(row.epoch, sequence, &free_slot)
        if kind == MSG:
            self.counted += 1
            if sequence > row.last_sent:
                row.last_sent = sequence
                row.flags |= MOVED
            if self.epochs[slot] == EMPTY:
                if free_slot >= 0:
                    slot = <uint64_t>free_slot
                else:
                    self.used += 1
                self.epochs[slot] = row.epoch
                self.sequences[slot] = sequence
                row.pending += 1
        else:
            self.gone += 1
            if self.epochs[slot] != EMPTY:
                self.epochs[slot] = REMOVED
                row.pending -= 1
        return 0

    def apply(self, buffer, batch, int64_t row):
        cdef const uint8_t[::1] data = buffer
        cdef const uint8_t[::1] kinds = batch.type
        cdef const uint64_t[::1] ids = batch.id
        cdef const uint64_t[::1] seqs = batch.seq
        cdef const int64_t[::1] offsets = batch.offset
        cdef const uint32_t[::1] sizes = batch.size
        cdef int64_t count = min(kinds.shape[0], ids.shape[0], seqs.shape[0], offsets.shape[0], sizes.shape[0])
        cdef const uint8_t* p
        cdef Row new
        cdef int kind
        if row < 0:
            raise ValueError(f"row {row} of {count}")
        with nogil:
            while row < count:
                kind = kinds[row]
                if kind == MSG or kind == ACK:
                    self.flow_row(kind, ids[row], seqs[row])
                elif kind == NEW or kind == UPDATE:
                    if offsets[row] < 0 or offsets[row] + HEADER_SIZE + <int64_t>sizes[row] > data.shape[0]:
                        break
                    p = &data[0] + offsets[row] + HEADER_SIZE
                    if not usual_subscription(p, p + sizes[row], &new):
                        break
                    new.place = offsets[row]
                    self.put_row(kind, &new)
                elif kind == DELETE and ids[row] and <int>sizes[row] == 1 + varint_size(ids[row]):
                    self.delete_row(ids[row])
                else:
                    break
                row += 1
        return row

    def put(self, int kind, uint64_t number, uint64_t last_sent, int64_t place, uint8_t flags):
        cdef Row new
        new.id, new.last_sent, new.place, new.flags = number, last_sent, place, flags
        self.put_row(kind, &new)

    def delete(self, uint64_t number):
        self.delete_row(number)

    def flow(self, int kind, uint64_t number, uint64_t sequence):
        self.flow_row(kind, number, sequence)

    def last_sent(self, uint64_t number):
        cdef int64_t at = self.find(number)
        return -1 if at < 0 else self.rows[at].last_sent

    def finish(self):
        cdef int64_t count = self.count - self.deleted, row, kept = 0
        cdef uint64_t slot, size = self.pair_mask + 1
        cdef int32_t* row_of = <int32_t*>malloc((<size_t>self.epoch + 1) * sizeof(int32_t))
        if row_of == NULL:
            raise MemoryError
        free(self.slots)
        self.slots = NULL
        result = Folded(
            array("Q", bytes(8 * count)),
            array("q", bytes(8 * count)),
            array("Q", bytes(8 * count)),
            array("B", bytes(count)),
            array("q", bytes(8 * (count + 1))),
            None,
        )
        cdef uint64_t[::1] ids = result.id
        cdef int64_t[::1] places = result.place
        cdef uint64_t[::1] sent = result.last_sent
        cdef uint8_t[::1] flags = result.flags
        cdef int64_t[::1] first = result.first
        cdef uint64_t[::1] pending
        cdef uint32_t epoch
        try:
            for slot in range(<uint64_t>self.epoch + 1):
                row_of[slot] = -1
            for row in range(self.count):
                if self.rows[row].epoch:
                    ids[kept] = self.rows[row].id
                    places[kept] = self.rows[row].place
                    sent[kept] = self.rows[row].last_sent
                    flags[kept] = self.rows[row].flags
                    first[kept + 1] = first[kept] + self.rows[row].pending
                    row_of[self.rows[row].epoch] = <int32_t>kept
                    kept += 1
            free(self.rows)
            self.rows = NULL
            result = result._replace(pending=array("Q", bytes(8 * first[count])))
            pending = result.pending
            for slot in range(size):
                epoch = self.epochs[slot]
                if epoch != EMPTY and epoch != REMOVED and row_of[epoch] >= 0:
                    row = row_of[epoch]
                    pending[first[row]] = self.sequences[slot]
                    first[row] += 1
        finally:
            free(row_of)
        free(self.sequences)
        free(self.epochs)
        self.sequences, self.epochs = NULL, NULL
        # Filling moved each start to the next one.
        for row in range(count, 0, -1):
            first[row] = first[row - 1]
        if count:
            first[0] = 0
        for row in range(count):
            if first[row + 1] - first[row] > 1:
                sort(&pending[first[row]], first[row + 1] - first[row])
        self.count = self.deleted = 0
        return result


cdef int compare(const void* a, const void* b) noexcept nogil:
    cdef uint64_t x = (<const uint64_t*>a)[0], y = (<const uint64_t*>b)[0]
    return (x > y) - (x < y)


cdef extern from "stdlib.h" nogil:
    void qsort(void* base, size_t count, size_t size, int (*compare)(const void*, const void*) noexcept nogil)


cdef void sort(uint64_t* values, int64_t count) noexcept nogil:
    qsort(values, count, sizeof(uint64_t), compare)

