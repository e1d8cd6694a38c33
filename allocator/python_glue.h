/* From the arena's callbacks to Python. The one piece of C that knows the interpreter: it is part of cffi's
 * module and of nothing else.
 *
 * A thread that Python has never seen (a worker of OpenMP, of oneDNN) does not ask: whoever waits for that worker may
 * hold the interpreter's lock. All others may wait for it, since no lock of ours is held here.
 */
#ifndef DAF_PYTHON_GLUE_H
#define DAF_PYTHON_GLUE_H

/* Made by cffi; their bodies are in pressure.py, out_of_memory.py and trace/profile.py. */
static int daf_on_pressure(void *context, uint64_t missing_bytes);
static void daf_on_out_of_memory(daf_arena_t *arena, uint64_t num_bytes, daf_advice_t *advice);
static uint32_t daf_on_look(uint64_t num_bytes);

/* Runs in the main thread between two of its instructions. */
static int daf_raise_later(void *unused) {
    (void)unused;
    PyObject *module = PyImport_ImportModule("daf.allocator.pressure");
    PyObject *done = module ? PyObject_CallMethod(module, "raise_stored", NULL) : NULL;
    int status = done ? 0 : -1;
    Py_XDECREF(done);
    Py_XDECREF(module);
    return status;
}

/* A daf_pressure_fn. A negative answer of Python's: a signal's exception came up in the callback and is still due. */
static int daf_ask_python(void *context, uint64_t missing_bytes) {
    if (PyGILState_GetThisThreadState() == NULL) return 0;
    int is_freed = daf_on_pressure(context, missing_bytes);
    if (is_freed < 0) Py_AddPendingCall(daf_raise_later, NULL);
    return is_freed;
}

/* A daf_advise_fn. */
static void daf_ask_advice(daf_arena_t *arena, uint64_t num_bytes, daf_advice_t *advice) {
    if (PyGILState_GetThisThreadState() != NULL) daf_on_out_of_memory(arena, num_bytes, advice);
}

/* A daf_look_fn. */
static uint32_t daf_look_from_python(uint64_t num_bytes) {
    if (PyGILState_GetThisThreadState() == NULL) return 0;
    uint32_t stack = daf_on_look(num_bytes);
    if (stack == (uint32_t)DAF_PROFILE_INTERRUPTED) Py_AddPendingCall(daf_raise_later, NULL);
    return stack;
}

#endif
