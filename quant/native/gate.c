/* The gate: what autograd's saved-tensor hooks answer without a Python frame.
 *
 *   pack     a parameter, or a tensor too small to be coded: a Kept handle. All else: the engine's own pack.
 *   unpack   a Kept handle: its tensor, if nobody wrote over it. All else: the engine's own unpack.
 *   after a backward   the first save of a thread goes to the engine, which begins a step.
 *   followed           inside a module call that the engine follows, every save goes to it.
 *   known node         a type of autograd node that is neither attention nor an op after whose reads others are judged.
 *
 * A gate answers only while it is open: in steps in which nobody watches single saves. What it answers is what the
 * engine would have answered; tests compare both. The interpreter's lock guards everything here.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdbool.h>
#include <stddef.h>
#include <structmember.h>

#define DIM_OF_ATTENTION 3

static _Thread_local bool is_after_backward = true;
static _Thread_local bool is_followed;

static struct { PyObject *nbytes, *version, *is_leaf, *ndim, *grad_fn; } names;

/* Bytes of tensors that are kept as they are, and how many were since somebody looked.
 * num_live_bytes = what all Kept handles with these books hold */
typedef struct books {
    PyObject_HEAD long long live_bytes;                          /* of handles that live */
    long long num_packs, num_parameters, num_small, small_bytes; /* answered here, so far */
} books_t;

typedef struct kept {
    PyObject_HEAD PyObject *tensor, *instead, *context; /* instead: None, or the handle that took its place */
    books_t *books;
    long long version, num_bytes;
} kept_t;

typedef struct gate {
    PyObject_HEAD PyObject *slow_pack, *slow_unpack, *context, *known_nodes, *detach, *current_node;
    PyTypeObject *tensor_type, *parameter_type, *kept_type;
    books_t *books;
    long long min_bytes;
    char is_open;
} gate_t;

/* -- numbers of a tensor */

static bool read_number(PyObject *owner, PyObject *name, long long *number) {
    PyObject *value = PyObject_GetAttr(owner, name);
    if (value == NULL) return false;
    *number = PyLong_AsLongLong(value);
    Py_DECREF(value);
    return *number != -1 || !PyErr_Occurred();
}

static bool is_true(PyObject *owner, PyObject *name) {
    PyObject *value = PyObject_GetAttr(owner, name);
    Py_XDECREF(value);
    return value == Py_True;
}

/* -- Books */

static PyMemberDef books_members[] = {
    {"live_bytes", T_LONGLONG, offsetof(books_t, live_bytes), 0, NULL},
    {"num_packs", T_LONGLONG, offsetof(books_t, num_packs), 0, NULL},
    {"num_parameters", T_LONGLONG, offsetof(books_t, num_parameters), 0, NULL},
    {"num_small", T_LONGLONG, offsetof(books_t, num_small), 0, NULL},
    {"small_bytes", T_LONGLONG, offsetof(books_t, small_bytes), 0, NULL},
    {NULL, 0, 0, 0, NULL},
};

static void books_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyType_Slot books_slots[] = {
    {Py_tp_doc, "Counts of the tensors that are kept as they are."},
    {Py_tp_members, books_members},
    {Py_tp_dealloc, books_dealloc},
    {0, NULL},
};

static PyType_Spec books_spec = {
    .name = "daf.quant._gate.Books", .basicsize = sizeof(books_t), .flags = Py_TPFLAGS_DEFAULT, .slots = books_slots};
static PyTypeObject *books_type;

/* -- Kept. Not tracked by the garbage collector, like what torch saves without hooks. */

static void kept_fill(kept_t *self, PyObject *tensor, PyObject *context, books_t *books, long long version,
                      long long num_bytes) {
    self->tensor = Py_NewRef(tensor);
    self->instead = Py_NewRef(Py_None);
    self->context = Py_NewRef(context);
    self->books = (books_t *)Py_NewRef((PyObject *)books);
    self->version = version;
    self->num_bytes = num_bytes;
    books->live_bytes += num_bytes;
}

static int kept_init(PyObject *self, PyObject *arguments, PyObject *keywords) {
    PyObject *tensor, *context, *books;
    long long version, num_bytes;
    (void)keywords;
    if (!PyArg_ParseTuple(arguments, "OOO!LL", &tensor, &context, books_type, &books, &version, &num_bytes)) return -1;
    kept_t *kept = (kept_t *)self;
    if (kept->tensor != NULL) {
        PyErr_SetString(PyExc_RuntimeError, "a handle is made once");
        return -1;
    }
    kept_fill(kept, tensor, context, (books_t *)books, version, num_bytes);
    return 0;
}

static PyObject *kept_uncount(PyObject *self, PyObject *unused) {
    kept_t *kept = (kept_t *)self;
    (void)unused;
    if (kept->books != NULL) kept->books->live_bytes -= kept->num_bytes;
    kept->num_bytes = 0;
    Py_RETURN_NONE;
}

/* Runs inside autograd, where no Python code of ours may: a signal's exception would be lost there. */
static void kept_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    kept_t *kept = (kept_t *)self;
    if (kept->books != NULL) kept->books->live_bytes -= kept->num_bytes;
    Py_XDECREF(kept->tensor);
    Py_XDECREF(kept->instead);
    Py_XDECREF(kept->context);
    Py_XDECREF((PyObject *)kept->books);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyMemberDef kept_members[] = {
    {"tensor", T_OBJECT_EX, offsetof(kept_t, tensor), 0, NULL},
    {"instead", T_OBJECT_EX, offsetof(kept_t, instead), 0, NULL},
    {"context", T_OBJECT_EX, offsetof(kept_t, context), READONLY, NULL},
    {"version", T_LONGLONG, offsetof(kept_t, version), READONLY, NULL},
    {"num_bytes", T_LONGLONG, offsetof(kept_t, num_bytes), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef kept_methods[] = {
    {"uncount", kept_uncount, METH_NOARGS, "Its bytes count no longer."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot kept_slots[] = {
    {Py_tp_doc, "A tensor that is kept as it is: (tensor, context, books, version, bytes that count)."},
    {Py_tp_init, kept_init},
    {Py_tp_members, kept_members},
    {Py_tp_methods, kept_methods},
    {Py_tp_dealloc, kept_dealloc},
    {0, NULL},
};

static PyType_Spec kept_spec = {.name = "daf.quant._gate.KeptTensor",
                                .basicsize = sizeof(kept_t),
                                .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
                                .slots = kept_slots};

/* -- Gate */

static bool is_known(const gate_t *gate, PyObject *node) {
    return PySet_Contains(gate->known_nodes, (PyObject *)Py_TYPE(node)) == 1;
}

/* Below the size that is coded, and not attention's output, whose inputs may be large. */
static bool is_small(const gate_t *gate, PyObject *tensor, long long *num_bytes) {
    long long num_axes;
    if (!read_number(tensor, names.nbytes, num_bytes) || *num_bytes >= gate->min_bytes) return false;
    if (!read_number(tensor, names.ndim, &num_axes)) return false;
    if (num_axes < DIM_OF_ATTENTION) return true;
    PyObject *node = PyObject_GetAttr(tensor, names.grad_fn);
    bool is_plain = node != NULL && (node == Py_None || is_known(gate, node));
    Py_XDECREF(node);
    return is_plain;
}

/* A leaf has no graph that it could keep alive; anything else is detached from its own. */
static PyObject *without_graph(const gate_t *gate, PyObject *tensor) {
    if (is_true(tensor, names.is_leaf)) return Py_NewRef(tensor);
    return PyObject_CallFunctionObjArgs(gate->detach, tensor, NULL);
}

static PyObject *keep(gate_t *gate, PyObject *tensor, long long num_bytes) {
    long long version;
    PyObject *held = without_graph(gate, tensor);
    if (held == NULL || !read_number(tensor, names.version, &version)) {
        Py_XDECREF(held);
        return NULL;
    }
    kept_t *kept = (kept_t *)PyType_GenericAlloc(gate->kept_type, 0);
    if (kept != NULL) kept_fill(kept, held, gate->context, gate->books, version, num_bytes);
    Py_DECREF(held);
    return (PyObject *)kept;
}

/* NULL without an exception: not for the gate to answer. */
static PyObject *pack_fast(gate_t *gate, PyObject *tensor) {
    PyTypeObject *type = Py_TYPE(tensor);
    long long num_bytes = 0;
    PyObject *kept = NULL;
    bool is_parameter = type == gate->parameter_type;
    if (is_parameter || (type == gate->tensor_type && is_small(gate, tensor, &num_bytes)))
        kept = keep(gate, tensor, num_bytes);
    if (kept == NULL) {
        PyErr_Clear();
        return NULL;
    }
    gate->books->num_packs++;
    gate->books->num_parameters += is_parameter;
    gate->books->num_small += !is_parameter;
    gate->books->small_bytes += num_bytes;
    return kept;
}

static PyObject *gate_pack(PyObject *self, PyObject *tensor) {
    gate_t *gate = (gate_t *)self;
    if (gate->is_open && !is_after_backward && !is_followed) {
        PyObject *kept = pack_fast(gate, tensor);
        if (kept != NULL) return kept;
    }
    return PyObject_CallFunctionObjArgs(gate->slow_pack, tensor, NULL);
}

/* Whether the node that asks, if one does, is of a type after which nobody else is judged. */
static bool is_asked_by_known(const gate_t *gate) {
    PyObject *node = PyObject_CallNoArgs(gate->current_node);
    if (node == NULL) PyErr_Clear();
    bool is_plain = node != NULL && (node == Py_None || is_known(gate, node));
    Py_XDECREF(node);
    return is_plain;
}

static PyObject *unpack_fast(const gate_t *gate, PyObject *handle) {
    kept_t *kept = (kept_t *)handle;
    long long version;
    if (Py_TYPE(handle) != gate->kept_type || kept->instead != Py_None || kept->tensor == NULL) return NULL;
    if (!read_number(kept->tensor, names.version, &version))
        PyErr_Clear();
    else if (version == kept->version && is_asked_by_known(gate))
        return Py_NewRef(kept->tensor);
    return NULL;
}

static PyObject *gate_unpack(PyObject *self, PyObject *handle) {
    gate_t *gate = (gate_t *)self;
    if (gate->is_open) {
        PyObject *tensor = unpack_fast(gate, handle);
        is_after_backward |= tensor != NULL;
        if (tensor != NULL) return tensor;
    }
    return PyObject_CallFunctionObjArgs(gate->slow_unpack, handle, NULL);
}

static int gate_init(PyObject *self, PyObject *arguments, PyObject *keywords) {
    static char *words[] = {"pack",         "unpack",      "context",        "books",     "min_bytes", "detach",
                            "current_node", "tensor_type", "parameter_type", "kept_type", NULL};
    gate_t *gate = (gate_t *)self, new = {.is_open = 0};
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "OOOO!LOOO!O!O!", words, &new.slow_pack, &new.slow_unpack,
                                     &new.context, books_type, &new.books, &new.min_bytes, &new.detach,
                                     &new.current_node, &PyType_Type, &new.tensor_type, &PyType_Type,
                                     &new.parameter_type, &PyType_Type, &new.kept_type))
        return -1;
    if (gate->slow_pack != NULL) {
        PyErr_SetString(PyExc_RuntimeError, "a gate is made once");
        return -1;
    }
    gate->known_nodes = PySet_New(NULL);
    if (gate->known_nodes == NULL) return -1;
    gate->slow_pack = Py_NewRef(new.slow_pack);
    gate->slow_unpack = Py_NewRef(new.slow_unpack);
    gate->context = Py_NewRef(new.context);
    gate->detach = Py_NewRef(new.detach);
    gate->current_node = Py_NewRef(new.current_node);
    gate->tensor_type = (PyTypeObject *)Py_NewRef((PyObject *)new.tensor_type);
    gate->parameter_type = (PyTypeObject *)Py_NewRef((PyObject *)new.parameter_type);
    gate->kept_type = (PyTypeObject *)Py_NewRef((PyObject *)new.kept_type);
    gate->books = (books_t *)Py_NewRef((PyObject *)new.books);
    gate->min_bytes = new.min_bytes;
    return 0;
}

static int gate_traverse(PyObject *self, visitproc visit, void *arg) {
    gate_t *gate = (gate_t *)self;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(gate->slow_pack);
    Py_VISIT(gate->slow_unpack);
    Py_VISIT(gate->context);
    Py_VISIT(gate->known_nodes);
    Py_VISIT(gate->detach);
    Py_VISIT(gate->current_node);
    Py_VISIT((PyObject *)gate->tensor_type);
    Py_VISIT((PyObject *)gate->parameter_type);
    Py_VISIT((PyObject *)gate->kept_type);
    return 0;
}

/* The types stay: a gate that is cleared may still be called. */
static int gate_clear(PyObject *self) {
    gate_t *gate = (gate_t *)self;
    gate->is_open = 0;
    Py_CLEAR(gate->context);
    Py_CLEAR(gate->detach);
    return 0;
}

static void gate_dealloc(PyObject *self) {
    gate_t *gate = (gate_t *)self;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    gate_clear(self);
    Py_XDECREF(gate->slow_pack);
    Py_XDECREF(gate->slow_unpack);
    Py_XDECREF(gate->known_nodes);
    Py_XDECREF(gate->current_node);
    Py_XDECREF((PyObject *)gate->tensor_type);
    Py_XDECREF((PyObject *)gate->parameter_type);
    Py_XDECREF((PyObject *)gate->kept_type);
    Py_XDECREF((PyObject *)gate->books);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(self);
    Py_DECREF(type);
}

static PyMemberDef gate_members[] = {
    {"is_open", T_BOOL, offsetof(gate_t, is_open), 0, NULL},
    {"known_nodes", T_OBJECT_EX, offsetof(gate_t, known_nodes), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef gate_methods[] = {
    {"pack", gate_pack, METH_O, "What autograd keeps in place of a saved tensor."},
    {"unpack", gate_unpack, METH_O, "The tensor that such a handle stands for."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot gate_slots[] = {
    {Py_tp_doc, "The pair of hooks in front of an engine's."},
    {Py_tp_init, gate_init},
    {Py_tp_traverse, gate_traverse},
    {Py_tp_clear, gate_clear},
    {Py_tp_dealloc, gate_dealloc},
    {Py_tp_members, gate_members},
    {Py_tp_methods, gate_methods},
    {0, NULL},
};

static PyType_Spec gate_spec = {.name = "daf.quant._gate.Gate",
                                .basicsize = sizeof(gate_t),
                                .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
                                .slots = gate_slots};

/* -- the thread's state, and the module */

static PyObject *set_after_backward(PyObject *module, PyObject *value) {
    (void)module;
    is_after_backward = value == Py_True;
    Py_RETURN_NONE;
}

static PyObject *get_after_backward(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    return PyBool_FromLong(is_after_backward);
}

static PyObject *set_followed(PyObject *module, PyObject *value) {
    (void)module;
    is_followed = value == Py_True;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"set_after_backward", set_after_backward, METH_O,
     "Whether this thread's next save is the first after a backward."},
    {"is_after_backward", get_after_backward, METH_NOARGS, "Whether it is."},
    {"set_followed", set_followed, METH_O, "Whether this thread is in a module call that the engine follows."},
    {NULL, NULL, 0, NULL},
};

static int add_type(PyObject *module, PyType_Spec *spec, PyTypeObject **type) {
    PyObject *made = PyType_FromSpec(spec);
    if (type != NULL) *type = (PyTypeObject *)made;
    int status = made == NULL ? -1 : PyModule_AddType(module, (PyTypeObject *)made);
    if (type == NULL) Py_XDECREF(made);
    return status;
}

static int execute(PyObject *module) {
    names.nbytes = PyUnicode_InternFromString("nbytes");
    names.version = PyUnicode_InternFromString("_version");
    names.is_leaf = PyUnicode_InternFromString("is_leaf");
    names.ndim = PyUnicode_InternFromString("ndim");
    names.grad_fn = PyUnicode_InternFromString("grad_fn");
    if (PyErr_Occurred() || add_type(module, &books_spec, &books_type) || add_type(module, &kept_spec, NULL)) return -1;
    return add_type(module, &gate_spec, NULL);
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, execute}, {0, NULL}};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT,
    .m_name = "daf.quant._gate",
    .m_doc = "Autograd's hooks for saved tensors, as far as they need no Python.",
    .m_methods = functions,
    .m_slots = module_slots,
};

PyMODINIT_FUNC PyInit__gate(void) {
    return PyModuleDef_Init(&definition);
}
