# cython: language_level=3
"""Mapped files that become shorter: reading a lost page yields zeros and a mark instead of ending the process.

The system sends SIGBUS for a mapped page that cannot be read: the file was truncated, or its disk fails. The handler
checks whether the address is in a guarded mapping. If so, it replaces the rest of the mapping by pages of zeros and
records the place, and the reader continues; `stantools.store.mapping` checks the mark afterwards. Other addresses go to
the previous handler.
"""

from libc.stdint cimport uintptr_t

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer

cdef extern from *:
    """
    #include <errno.h>
    #include <signal.h>
    #include <stdint.h>
    #include <stdlib.h>
    #include <unistd.h>
    #include <sys/mman.h>

    #ifndef MAP_ANONYMOUS
    #define MAP_ANONYMOUS MAP_ANON
    #endif
    #ifndef MAP_NORESERVE
    #define MAP_NORESERVE 0
    #endif
    #define GET(place) __atomic_load_n(&(place), __ATOMIC_SEQ_CST)
    #define SET(place, value) __atomic_store_n(&(place), (value), __ATOMIC_SEQ_CST)

    /* Areas are reused and never freed: a handler in another thread may be reading any of them. */
    typedef struct area {
        struct area *next;
        uintptr_t start, end, fault;
        unsigned int turn;  /* odd while start and end change */
        int taken;
    } area;

    static area *areas;
    static struct sigaction before;
    static uintptr_t page;

    static void set_area(area *each, uintptr_t start, uintptr_t end) {
        SET(each->turn, each->turn + 1);
        SET(each->start, start);
        SET(each->end, end);
        SET(each->turn, each->turn + 1);
    }

    static area *take_area(uintptr_t start, uintptr_t end, uintptr_t fault) {
        area *each;
        for (each = GET(areas); each; each = each->next) {
            int no = 0;
            if (__atomic_compare_exchange_n(&each->taken, &no, 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) break;
        }
        if (!each) {
            each = calloc(1, sizeof *each);
            if (!each) return NULL;
            each->taken = 1;
            each->next = GET(areas);
            while (!__atomic_compare_exchange_n(&areas, &each->next, each, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
        }
        SET(each->fault, fault);
        set_area(each, start, end);
        return each;
    }

    static void leave_area(area *each) {
        set_area(each, 0, 0);
        SET(each->taken, 0);
    }

    static uintptr_t fault_of(area *each) { return GET(each->fault); }

    /* Only operations that are safe in a signal handler: no lock, no allocation, no Python. */
    static int give_zeros(uintptr_t at) {
        for (area *each = GET(areas); each; each = each->next) {
            unsigned int turn = GET(each->turn);
            uintptr_t start = GET(each->start), end = GET(each->end), first = at - at % page, known;
            /* An area that changes is not being read. */
            if (turn % 2 || at < start || at >= end || turn != GET(each->turn)) continue;
            if (mmap((void *)first, end - first, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE,
                     -1, 0) == MAP_FAILED) return 0;
            known = GET(each->fault);
            while (first < known
                   && !__atomic_compare_exchange_n(&each->fault, &known, first, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
            return 1;
        }
        return 0;
    }

    static void on_sigbus(int number, siginfo_t *info, void *context) {
        int kept = errno, sent = info->si_code <= 0;  /* by kill */
        int done = !sent && give_zeros((uintptr_t)info->si_addr);
        errno = kept;
        if (done) return;
        if (before.sa_flags & SA_SIGINFO) before.sa_sigaction(number, info, context);
        else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) before.sa_handler(number);
        else if (!sent || before.sa_handler == SIG_DFL) {
            /* The repeated instruction ends the process. */
            signal(number, SIG_DFL);
            if (sent) raise(number);
        }
    }

    static int install(void) {
        struct sigaction now = {0};
        page = (uintptr_t)sysconf(_SC_PAGESIZE);
        now.sa_sigaction = on_sigbus;
        now.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        sigemptyset(&now.sa_mask);
        /* The handler needs the previous one before its first call. */
        return sigaction(SIGBUS, NULL, &before) || sigaction(SIGBUS, &now, NULL);
    }
    """
    ctypedef struct area:
        pass
    area *take_area(uintptr_t start, uintptr_t end, uintptr_t fault)
    void leave_area(area *each)
    uintptr_t fault_of(area *each)
    int install()

if install():
    raise ImportError("no handler for SIGBUS can be installed")

cdef uintptr_t NONE = <uintptr_t>-1


cdef class Guard:
    """Guards one mapping, from `watch` to `leave`."""

    cdef area *_area
    cdef uintptr_t _start, _fault

    def __cinit__(self):
        self._fault = NONE

    def watch(self, mapping) -> None:
        """Starts to guard a mapping; it must not be unmapped before `leave`."""
        cdef Py_buffer content
        PyObject_GetBuffer(mapping, &content, PyBUF_SIMPLE)
        self._start = <uintptr_t>content.buf
        self._area = take_area(self._start, self._start + <uintptr_t>content.len, self._fault)
        PyBuffer_Release(&content)
        if not self._area:
            raise MemoryError

    def leave(self) -> None:
        """Ends the guard; `fault` stays."""
        if self._area:
            self._fault = fault_of(self._area)
            leave_area(self._area)
            self._area = NULL

    @property
    def fault(self) -> int:
        """Offset in bytes of the first page that could not be read; -1 if there was none."""
        cdef uintptr_t fault = fault_of(self._area) if self._area else self._fault
        return -1 if fault == NONE else <Py_ssize_t>(fault - self._start)

    def __dealloc__(self):
        self.leave()
