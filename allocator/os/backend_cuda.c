/* Device memory by the driver's virtual-memory calls: a range of addresses for good, memory behind it by units.
 *
 * A unit's handle is released as soon as it is mapped: the mapping alone then keeps the memory, and unmapping gives it
 * back. So there is nothing to keep books on.
 */
#include "os/cuda_backend.h"

#include <pthread.h>

enum { MAX_STUCK = 64 };

typedef struct cuda_backend {
    daf_backend_t table;
    dafi_cuda_device_t device;
    dafi_quiesce_fn quiesce;
    void *quiesce_context;
    int is_open;
    uint32_t num_stuck;
    dafi_cu_address_t stuck[MAX_STUCK]; /* units that the driver would not unmap: still good when next wanted */
} cuda_backend_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cuda_backend_t backends[DAF_MAX_DEVICES];

/* Threads of ours have no context, torch's have one that we must leave as it was. */
static int enter(const cuda_backend_t *backend) {
    return dafi_cuda()->context_push(backend->device.context) == DAFI_CU_SUCCESS;
}

static void leave(void) {
    dafi_cuda()->context_pop(&(dafi_cu_context_t){NULL});
}

static daf_status_t reserve(void *self, uint64_t num_bytes, uint8_t **base) {
    const cuda_backend_t *backend = self;
    dafi_cu_address_t address = 0;
    if (!enter(backend)) return DAF_SYSTEM;
    dafi_cu_result_t result = dafi_cuda()->reserve(&address, num_bytes, backend->device.unit_bytes, 0, 0);
    leave();
    if (result != DAFI_CU_SUCCESS) return DAF_SYSTEM;
    *base = (uint8_t *)(uintptr_t)address; /* NOLINT: an address on the device, never read here */
    return DAF_OK;
}

static int take_stuck(cuda_backend_t *backend, dafi_cu_address_t address) {
    for (uint32_t i = 0; i < backend->num_stuck; i++)
        if (backend->stuck[i] == address) {
            backend->stuck[i] = backend->stuck[--backend->num_stuck];
            return 1;
        }
    return 0;
}

static void unreserve(void *self, uint8_t *base, uint64_t num_bytes) {
    cuda_backend_t *backend = self;
    if (!enter(backend)) return;
    for (uint32_t i = backend->num_stuck; i-- > 0;) {
        dafi_cu_address_t address = backend->stuck[i];
        if (address - (uintptr_t)base >= num_bytes) continue;
        take_stuck(backend, address);
        dafi_cuda()->unmap(address, backend->device.unit_bytes);
    }
    dafi_cuda()->unreserve((uintptr_t)base, num_bytes);
    leave();
}

static dafi_cu_result_t map_unit(cuda_backend_t *backend, dafi_cu_address_t address) {
    const dafi_cuda_t *cuda = dafi_cuda();
    uint64_t unit_bytes = backend->device.unit_bytes;
    dafi_cu_prop_t prop = {.type = DAFI_CU_PINNED, .location = {DAFI_CU_DEVICE, backend->device.id}};
    unsigned long long handle;
    if (take_stuck(backend, address)) return DAFI_CU_SUCCESS;
    dafi_cu_result_t result = cuda->create(&handle, unit_bytes, &prop, 0);
    if (result != DAFI_CU_SUCCESS) return result;
    result = cuda->map(address, unit_bytes, 0, handle, 0);
    cuda->release(handle);
    return result;
}

static void unmap_units(cuda_backend_t *backend, dafi_cu_address_t begin, dafi_cu_address_t end) {
    uint64_t unit_bytes = backend->device.unit_bytes;
    for (dafi_cu_address_t address = begin; address < end; address += unit_bytes)
        if (dafi_cuda()->unmap(address, unit_bytes) != DAFI_CU_SUCCESS && backend->num_stuck < MAX_STUCK)
            backend->stuck[backend->num_stuck++] = address;
}

static dafi_cu_result_t map_units(cuda_backend_t *backend, dafi_cu_address_t begin, uint64_t num_bytes) {
    dafi_cu_access_t access = {{DAFI_CU_DEVICE, backend->device.id}, DAFI_CU_READ_WRITE};
    dafi_cu_address_t address = begin, end = begin + num_bytes;
    dafi_cu_result_t result = DAFI_CU_SUCCESS;
    while (address < end && (result = map_unit(backend, address)) == DAFI_CU_SUCCESS)
        address += backend->device.unit_bytes;
    if (result == DAFI_CU_SUCCESS) result = dafi_cuda()->set_access(begin, num_bytes, &access, 1);
    if (result != DAFI_CU_SUCCESS) unmap_units(backend, begin, address);
    return result;
}

static daf_status_t commit(void *self, uint8_t *base, uint64_t num_bytes) {
    if (!enter(self)) return DAF_SYSTEM;
    dafi_cu_result_t result = map_units(self, (uintptr_t)base, num_bytes);
    leave();
    return result == DAFI_CU_SUCCESS ? DAF_OK : result == DAFI_CU_OUT_OF_MEMORY ? DAF_OUT_OF_MEMORY : DAF_SYSTEM;
}

static daf_status_t decommit(void *self, uint8_t *base, uint64_t num_bytes) {
    cuda_backend_t *backend = self;
    if (!enter(backend)) return DAF_SYSTEM;
    daf_status_t status = backend->quiesce == NULL ? DAF_OK : backend->quiesce(backend->quiesce_context);
    if (status == DAF_OK) unmap_units(backend, (uintptr_t)base, (uintptr_t)base + num_bytes);
    leave();
    return status;
}

static daf_status_t copy_out(void *self, void *to, const uint8_t *from, uint64_t num_bytes) {
    if (!enter(self)) return DAF_SYSTEM;
    dafi_cu_result_t result = dafi_cuda()->copy_out(to, (uintptr_t)from, num_bytes);
    leave();
    return result == DAFI_CU_SUCCESS ? DAF_OK : DAF_SYSTEM;
}

static daf_status_t copy_in(void *self, uint8_t *to, const void *from, uint64_t num_bytes) {
    if (!enter(self)) return DAF_SYSTEM;
    dafi_cu_result_t result = dafi_cuda()->copy_in((uintptr_t)to, from, num_bytes);
    leave();
    return result == DAFI_CU_SUCCESS ? DAF_OK : DAF_SYSTEM;
}

const daf_backend_t *daf_backend_cuda(int device) {
    if (device < 0 || device >= DAF_MAX_DEVICES) return NULL;
    cuda_backend_t *backend = &backends[device];
    pthread_mutex_lock(&lock);
    if (!backend->is_open && dafi_cuda_device(device, &backend->device) == DAF_OK) {
        backend->table = (daf_backend_t){
            .name = "cuda",
            .self = backend,
            .unit_bytes = backend->device.unit_bytes,
            .is_costly = 1,
            .reserve = reserve,
            .unreserve = unreserve,
            .commit = commit,
            .decommit = decommit,
            .copy_out = copy_out,
            .copy_in = copy_in,
        };
        backend->is_open = 1;
    }
    pthread_mutex_unlock(&lock);
    return backend->is_open ? &backend->table : NULL;
}

uint64_t daf_cuda_total_bytes(int device) {
    return daf_backend_cuda(device) == NULL ? 0 : backends[device].device.total_bytes;
}

void dafi_backend_cuda_set_quiesce(int device, dafi_quiesce_fn quiesce, void *context) {
    backends[device].quiesce_context = context;
    backends[device].quiesce = quiesce;
}

int dafi_backend_cuda_enter(int device) {
    return enter(&backends[device]);
}

void dafi_backend_cuda_leave(void) {
    leave();
}
