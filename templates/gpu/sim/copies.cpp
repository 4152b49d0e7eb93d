// Copies and fills: direction and range are checked when they are asked for, bytes move when the stream comes to them.
#include "runtime.h"

#include <cstring>

namespace {
bool from_device(int kind) { return kind == hipMemcpyDeviceToHost || kind == hipMemcpyDeviceToDevice; }
bool to_device(int kind) { return kind == hipMemcpyHostToDevice || kind == hipMemcpyDeviceToDevice; }

int direction(const void *to, const void *from) {
    const bool on_device = inside(to, 0, Where::device);
    return inside(from, 0, Where::device) ? (on_device ? hipMemcpyDeviceToDevice : hipMemcpyDeviceToHost) : (on_device ? hipMemcpyHostToDevice : hipMemcpyHostToHost);
}

hipError_t check_side(const char *side, const void *at, size_t nbytes, bool on_device) {
    if (on_device && !inside(at, nbytes, Where::device)) return fail(hipErrorInvalidValue, "%s of %zu bytes is not inside one allocation: it starts %s", side, nbytes, near_to(at).c_str());
    if (!on_device && inside(at, 0, Where::device)) return fail(hipErrorInvalidMemcpyDirection, "%s is said to be on the host, and is %s", side, near_to(at).c_str());
    return hipSuccess;
}

hipError_t check(void *to, const void *from, size_t nbytes, int kind) {
    if (kind < hipMemcpyHostToHost || kind > hipMemcpyDeviceToDevice) return fail(hipErrorInvalidMemcpyDirection, "kind %d", kind);
    if (nbytes == 0) return hipSuccess;
    if (!to || !from) return fail(hipErrorInvalidValue, "a copy of %zu bytes %s a null pointer", nbytes, to ? "from" : "to");
    hipError_t error = check_side("the destination", to, nbytes, to_device(kind));
    return error ? error : check_side("the source", from, nbytes, from_device(kind));
}

Task move(void *to, const void *from, size_t nbytes) {
    return [=] {
        memmove(to, from, nbytes);
        return hipSuccess;
    };
}

// Pageable host memory is staged at once, as drivers do; pinned memory is read when the copy runs, and so is all memory that a captured graph names.
Task copy_task(Stream &stream, void *to, const void *from, size_t nbytes, int kind) {
    if (kind != hipMemcpyHostToDevice || stream.capture || inside(from, nbytes, Where::pinned)) return move(to, from, nbytes);
    auto staged = std::make_shared<std::vector<char>>((const char *)from, (const char *)from + nbytes);
    return [=] {
        memmove(to, staged->data(), staged->size());
        return hipSuccess;
    };
}

hipError_t copy(void *to, const void *from, size_t nbytes, int kind, void *handle, bool waits) {
    Stream *stream;
    if (hipError_t error = find_stream(handle, &stream)) return error;
    if (kind == hipMemcpyDefault) kind = direction(to, from);
    if (hipError_t error = check(to, from, nbytes, kind)) return error;
    if (nbytes == 0) return hipSuccess;
    return submit(handle, {hipGraphNodeTypeMemcpy, nullptr, waits ? move(to, from, nbytes) : copy_task(*stream, to, from, nbytes, kind)});
}

hipError_t copy_now(void *to, const void *from, size_t nbytes, int kind) {
    if (hipError_t error = forbid_while_capturing("hipMemcpy")) return error;
    if (hipError_t error = copy(to, from, nbytes, kind, nullptr, true)) return error;
    return finish_null();
}

hipError_t fill_later(void *at, int value, size_t count, size_t width, void *stream) {
    if (count && !inside(at, count * width, Where::device)) return fail(hipErrorInvalidValue, "a fill of %zu bytes is not inside one allocation: it starts %s", count * width, near_to(at).c_str());
    return submit(stream, {hipGraphNodeTypeMemset, nullptr, [=] {
        if (width == 1)
            memset(at, value, count);
        else
            for (size_t i = 0; i < count; i++) memcpy((char *)at + i * width, &value, width);
        return hipSuccess;
    }});
}

hipError_t fill_now(void *at, int value, size_t count, size_t width) {
    if (hipError_t error = forbid_while_capturing("hipMemset")) return error;
    return fill_later(at, value, count, width, nullptr);  // the host does not wait for a fill of device memory
}
}  // namespace

API hipError_t hipMemcpy(void *to, const void *from, size_t nbytes, int kind) {
    return enter([&] { return copy_now(to, from, nbytes, kind); });
}
API hipError_t hipMemcpyAsync(void *to, const void *from, size_t nbytes, int kind, void *stream) {
    return enter([&] { return copy(to, from, nbytes, kind, stream, false); });
}
API hipError_t hipMemcpyHtoD(void *to, const void *from, size_t nbytes) { return hipMemcpy(to, from, nbytes, hipMemcpyHostToDevice); }
API hipError_t hipMemcpyDtoH(void *to, void *from, size_t nbytes) { return hipMemcpy(to, from, nbytes, hipMemcpyDeviceToHost); }
API hipError_t hipMemcpyDtoD(void *to, void *from, size_t nbytes) { return hipMemcpy(to, from, nbytes, hipMemcpyDeviceToDevice); }
API hipError_t hipMemcpyHtoDAsync(void *to, const void *from, size_t nbytes, void *stream) { return hipMemcpyAsync(to, from, nbytes, hipMemcpyHostToDevice, stream); }
API hipError_t hipMemcpyDtoHAsync(void *to, void *from, size_t nbytes, void *stream) { return hipMemcpyAsync(to, from, nbytes, hipMemcpyDeviceToHost, stream); }
API hipError_t hipMemcpyDtoDAsync(void *to, void *from, size_t nbytes, void *stream) { return hipMemcpyAsync(to, from, nbytes, hipMemcpyDeviceToDevice, stream); }

API hipError_t hipMemset(void *at, int value, size_t nbytes) {
    return enter([&] { return fill_now(at, value, nbytes, 1); });
}
API hipError_t hipMemsetAsync(void *at, int value, size_t nbytes, void *stream) {
    return enter([&] { return fill_later(at, value, nbytes, 1, stream); });
}
API hipError_t hipMemsetD32(void *at, int value, size_t count) {
    return enter([&] { return fill_now(at, value, count, 4); });
}
API hipError_t hipMemsetD32Async(void *at, int value, size_t count, void *stream) {
    return enter([&] { return fill_later(at, value, count, 4, stream); });
}
