// Which device is simulated, for Python to say; errors and what they mean.
#include "runtime.h"

#include <cstdio>
#include <cstring>

Device device;
Machine machine;
bool in_python;
std::recursive_mutex lock;
int64_t alive[KINDS];

namespace {
thread_local hipError_t last = hipSuccess, detailed = hipSuccess;
thread_local std::string detail, spoken;

const char *name_of(hipError_t error) {
    switch (error) {
#define X(number, name, text) case name: return #name;
        HIP_ERRORS(X)
#undef X
    }
    return "hipErrorUnknown";
}

const char *meaning_of(hipError_t error) {
    switch (error) {
#define X(number, name, text) case name: return text;
        HIP_ERRORS(X)
#undef X
    }
    return "unknown error";
}
}  // namespace

hipError_t fail(hipError_t error, const char *format, ...) {
    char text[1024];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    detail = text;
    detailed = error;
    return error;
}

void begin_call() { detailed = hipSuccess; }
void remember(hipError_t error) { last = error; }

hipError_t need_device() {
    return device.present ? hipSuccess : fail(hipErrorNoDevice, "no device is simulated now: use it inside `with simulated(...)`");
}

API const char *hipGetErrorName(hipError_t error) { return name_of(error); }

API const char *hipGetErrorString(hipError_t error) {
    if (error == hipSuccess || error != detailed) return meaning_of(error);
    spoken = std::string(meaning_of(error)) + "; " + device.name() + ": " + detail;
    return spoken.c_str();
}

API hipError_t hipPeekAtLastError() { return last; }
API hipError_t hipGetLastError() {
    hipError_t error = last;
    last = hipSuccess;
    return error;
}
API hipError_t hipExtGetLastError() { return hipGetLastError(); }

// ---- Python's side
struct RlxDevice { const char *arch; int present, machine_code, lazy, wave; uint64_t shared_nbytes, memory_nbytes; double patience_s; };

API hipError_t rlx_sim_configure(const RlxDevice *d) {
    return enter([&] {
        hipError_t error = finish_all();
        device.arch = d->arch;
        device.present = d->present;
        device.machine_code = d->machine_code;
        device.lazy = d->lazy;
        device.wave = (unsigned)d->wave;
        device.shared_nbytes = d->shared_nbytes;
        device.memory_nbytes = d->memory_nbytes;
        device.patience_s = d->patience_s;
        return error;
    });
}

API void rlx_sim_connect(const Machine *m) { machine = *m; }

// ---- for libraries above HIP (blaslt.cpp)
API int rlx_sim_inside(const void *at, size_t nbytes) {
    std::lock_guard<std::recursive_mutex> alone(lock);
    return inside(at, nbytes, Where::device);
}
API hipError_t rlx_sim_fail(hipError_t error, const char *text) { return fail(error, "%s", text); }

// Work for a stream, run once or, where it is captured, whenever that is replayed; `data` is dropped with the last that may run it.
API hipError_t rlx_sim_submit(void *stream, hipError_t (*run)(void *), void (*drop)(void *), void *data) {
    std::shared_ptr<void> held(data, drop);
    return enter([&] { return submit(stream, {hipGraphNodeTypeKernel, nullptr, [held, run] { return run(held.get()); }}); });
}

API void rlx_sim_alive(int64_t *counts) {
    std::lock_guard<std::recursive_mutex> alone(lock);
    memcpy(counts, alive, sizeof alive);
}

// Address and size of every live allocation, as many as fit; returns how many there are.
API size_t rlx_sim_ranges(uint64_t *pairs, size_t most) {
    std::lock_guard<std::recursive_mutex> alone(lock);
    auto all = ranges();
    for (size_t i = 0; i < all.size() && i < most; i++) {
        pairs[2 * i] = all[i].first;
        pairs[2 * i + 1] = all[i].second;
    }
    return all.size();
}
