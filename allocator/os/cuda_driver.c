#include "os/cuda_driver.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static dafi_cuda_t driver;
static int is_loaded;
static char why_not[200] = "the CUDA driver has not been looked for yet";

static int find(void *library, const char *name, void *member) {
    void *symbol = dlsym(library, name);
    if (symbol == NULL) {
        snprintf(why_not, sizeof(why_not), "the CUDA driver has no %s", name);
        return 0;
    }
    memcpy(member, &symbol, sizeof(symbol)); /* ISO C has no cast from an object's address to a function's */
    return 1;
}

static int find_all(void *library, dafi_cuda_t *found) {
#define DAFI_CU_FIND(member, name, arguments)                                                                          \
    if (!find(library, name, &found->member)) return 0;
    DAFI_CU_CALLS(DAFI_CU_FIND)
#undef DAFI_CU_FIND
    return 1;
}

daf_status_t daf_cuda_load(const char *path) {
    daf_status_t status = DAF_SYSTEM;
    dafi_cuda_t found;
    pthread_mutex_lock(&lock);
    if (is_loaded) {
        status = DAF_OK;
    } else {
        void *library = dlopen(path == NULL ? "libcuda.so.1" : path, RTLD_NOW | RTLD_LOCAL);
        if (library == NULL) {
            const char *error = dlerror();
            snprintf(why_not, sizeof(why_not), "no CUDA driver: %s", error == NULL ? "dlopen failed" : error);
        } else if (find_all(library, &found)) {
            dafi_cu_result_t result = found.init(0);
            snprintf(why_not, sizeof(why_not), "cuInit failed with status %d", result);
            status = result == DAFI_CU_SUCCESS ? DAF_OK : DAF_SYSTEM;
        }
        if (status == DAF_OK) {
            driver = found;
            why_not[0] = '\0';
            __atomic_store_n(&is_loaded, 1, __ATOMIC_RELEASE);
        }
    }
    pthread_mutex_unlock(&lock);
    return status;
}

const char *daf_cuda_why_not(void) {
    return why_not;
}

const dafi_cuda_t *dafi_cuda(void) {
    if (!__atomic_load_n(&is_loaded, __ATOMIC_ACQUIRE) && daf_cuda_load(NULL) != DAF_OK) return NULL;
    return &driver;
}

static dafi_cu_result_t measure(const dafi_cuda_t *cuda, dafi_cuda_device_t *device) {
    dafi_cu_prop_t prop = {.type = DAFI_CU_PINNED, .location = {DAFI_CU_DEVICE, device->id}};
    size_t unit_bytes = 0, free_bytes = 0, total_bytes = 0;
    dafi_cu_result_t result = cuda->granularity(&unit_bytes, &prop, DAFI_CU_GRANULARITY_MINIMUM);
    if (result != DAFI_CU_SUCCESS) return result;
    result = cuda->context_push(device->context);
    if (result != DAFI_CU_SUCCESS) return result;
    result = cuda->memory_info(&free_bytes, &total_bytes);
    cuda->context_pop(&(dafi_cu_context_t){NULL});
    device->unit_bytes = unit_bytes;
    device->total_bytes = total_bytes;
    return result;
}

daf_status_t dafi_cuda_device(int ordinal, dafi_cuda_device_t *device) {
    const dafi_cuda_t *cuda = dafi_cuda();
    memset(device, 0, sizeof(*device));
    device->ordinal = ordinal;
    if (cuda == NULL || cuda->device_get(&device->id, ordinal) != DAFI_CU_SUCCESS) return DAF_SYSTEM;
    if (cuda->context_retain(&device->context, device->id) != DAFI_CU_SUCCESS) return DAF_SYSTEM;
    if (measure(cuda, device) == DAFI_CU_SUCCESS && device->unit_bytes >= 4096) return DAF_OK;
    cuda->context_release(device->id);
    return DAF_SYSTEM;
}
