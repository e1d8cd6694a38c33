/* What a C function that can fail returns: the one list of both C modules. A leaf, as errors.py is for Python. */
#ifndef DAF_STATUS_H
#define DAF_STATUS_H

/* cdef begin: from here to the end mark cffi reads the same text */

typedef enum daf_status {
    DAF_OK = 0,
    /* the arena */
    DAF_OUT_OF_MEMORY = 1, /* the budget does not hold it, everything droppable counted */
    DAF_INVALID = 2,       /* an argument makes no sense: a foreign pointer, a stash that is gone */
    DAF_SYSTEM = 3,        /* the system or the driver refused; errno says why on the host */
    DAF_CLOSED = 4,        /* the arena is closed */
    /* the codecs */
    DAF_BAD_SPEC = 5,    /* no such codec, width, group shape or dtype, or they do not go together */
    DAF_BAD_PLANES = 6,  /* page size, stream count or page table that no stash can have */
    DAF_FOREIGN = 7,     /* the tag says that another coder wrote this */
    DAF_OUT_OF_RANGE = 8 /* integers that do not fit the planes; a mask with a third value */
} daf_status_t;

/* cdef end */

#endif
