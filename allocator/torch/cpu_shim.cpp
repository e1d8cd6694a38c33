/* torch's CPU allocator, answered by DAF.
 *
 * The only C++ in the project, and the only file that knows torch's headers: it is compiled on the user's machine
 * against the torch that is installed there. It links to nothing of ours; what it needs comes in as five
 * pointers, and all policy stands behind them in C (cpu_door.c).
 *
 * Installed once per process, for good. torch keeps pointers to an allocator in every storage, and oneDNN frees its
 * scratch through whatever allocator is registered *then*, so taking this one out again would hand our blocks
 * to somebody else's free(). While the door is closed, it passes requests on to the allocator it found.
 */
#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <array>
#include <cstddef>
#include <string>

namespace {

using IsOpenFn = int (*)();
using AllocFn = void *(*)(std::size_t num_bytes); /* nullptr: over budget */
using OwnsFn = int (*)(const void *block);
using FreeFn = void (*)(void *block);
using ExplainFn = void (*)(std::size_t num_bytes, char *text, std::size_t cap); /* why the last alloc failed */

IsOpenFn door_is_open;
AllocFn door_alloc;
OwnsFn door_owns;
FreeFn door_free;
ExplainFn door_explain;
c10::Allocator *previous;
c10::DeleterFnPtr previous_deleter;

void release(void *block) {
    if (block == nullptr) return;
    if (!door_owns(block)) return previous_deleter(block);
    c10::profiledCPUMemoryReporter().Delete(block);
    door_free(block);
}

[[noreturn]] void fail(std::size_t num_bytes) {
    c10::profiledCPUMemoryReporter().OutOfMemory(num_bytes);
    std::array<char, 2048> report{};
    door_explain(num_bytes, report.data(), report.size());
    throw c10::OutOfMemoryError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, std::string(report.data()));
}

struct Door final : c10::Allocator {
    c10::DataPtr allocate(std::size_t num_bytes) override {
        void *block = num_bytes == 0 ? nullptr : door_alloc(num_bytes);
        if (block == nullptr && !door_is_open()) return pass_on(num_bytes);
        if (block == nullptr && num_bytes > 0) fail(num_bytes);
        if (block != nullptr) c10::profiledCPUMemoryReporter().New(block, num_bytes);
        return {block, block, &release, c10::Device(c10::DeviceType::CPU)};
    }

    c10::DeleterFnPtr raw_deleter() const override { return &release; }

    void copy_data(void *dest, const void *src, std::size_t num_bytes) const override {
        default_copy_data(dest, src, num_bytes);
    }

  private:
    /* With our deleter on, as raw_deleter() promises: it knows the other's blocks from ours. */
    static c10::DataPtr pass_on(std::size_t num_bytes) {
        c10::DataPtr data = previous->allocate(num_bytes);
        (void)data.compare_exchange_deleter(previous_deleter, &release);
        return data;
    }
};

} // namespace

#define DAF_EXPORT extern "C" __attribute__((visibility("default")))

/* Returns 0, or 1 where the allocator found cannot be wrapped: it has no raw deleter. */
DAF_EXPORT int daf_torch_cpu_install(IsOpenFn is_open, AllocFn alloc, OwnsFn owns, FreeFn free_block,
                                     ExplainFn explain) {
    static Door door;
    if (previous != nullptr) return 0;
    c10::Allocator *found = c10::GetCPUAllocator();
    if (found->raw_deleter() == nullptr) return 1;
    door_is_open = is_open;
    door_alloc = alloc;
    door_owns = owns;
    door_free = free_block;
    door_explain = explain;
    previous_deleter = found->raw_deleter();
    previous = found;
    c10::SetCPUAllocator(&door, 255);
    return 0;
}

/* For the CUDA front door, whose C functions torch calls from C++: leave them with torch's own exception. */
DAF_EXPORT void daf_torch_raise_out_of_memory(const char *report) {
    throw c10::OutOfMemoryError({__func__, __FILE__, static_cast<uint32_t>(__LINE__)}, std::string(report));
}
