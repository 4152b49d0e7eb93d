// Device memory: each allocation a mapping of its own between pages that fault, filled with ones, its edges watched.
#include "runtime.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

namespace {
constexpr unsigned char poison = 0xFF;  // NaN in every float type, -1 in every integer
constexpr unsigned char edge = 0xA5;
constexpr size_t alignment = 256;       // as hipMalloc gives it
constexpr size_t tile = 16 << 20;

struct Allocation {
    size_t nbytes;
    Where where;
    char *mapping, *end;  // usable pages, without the guards
};
std::map<uintptr_t, Allocation> allocations;
size_t used;

size_t page() { return (size_t)sysconf(_SC_PAGESIZE); }
size_t up_to(size_t n, size_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// A file that holds nothing but poison.
int poisoned_file() {
    static int file = [] {
        int made = memfd_create("rlxpy-poison", 0);
        if (made < 0 || ftruncate(made, tile)) return -1;
        void *all = mmap(nullptr, tile, PROT_WRITE, MAP_SHARED, made, 0);
        if (all == MAP_FAILED) return -1;
        memset(all, poison, tile);
        munmap(all, tile);
        return made;
    }();
    return file;
}

// Much memory is poisoned by mapping that file again and again: pages that nobody writes cost nothing.
bool poison_pages(char *from, char *to) {
    if ((size_t)(to - from) < tile) return memset(from, poison, to - from), true;
    for (; from < to; from += tile)
        if (mmap(from, std::min(tile, (size_t)(to - from)), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, poisoned_file(), 0) == MAP_FAILED) return false;
    return true;
}

// Bytes of an allocation's own pages that are not its own.
template <class See> void edges(uintptr_t at, const Allocation &a, See see) {
    see(a.mapping, (char *)at);
    see((char *)at + a.nbytes, a.end);
}

// At every launch somebody looks: each byte is compared to its neighbour by memcmp.
bool untouched(const char *from, const char *to) {
    return from == to || ((unsigned char)*from == edge && memcmp(from, from + 1, to - from - 1) == 0);
}

const std::pair<const uintptr_t, Allocation> *around(const void *at) {
    auto next = allocations.upper_bound((uintptr_t)at);
    return next == allocations.begin() ? nullptr : &*std::prev(next);
}
}  // namespace

hipError_t allocate(void **out, size_t nbytes, Where where) {
    *out = nullptr;
    if (nbytes == 0) return hipSuccess;
    if (hipError_t error = need_device()) return error;
    if (where == Where::device && nbytes > device.memory_nbytes - used)
        return fail(hipErrorOutOfMemory, "%zu bytes asked for, %zu of %zu in use", nbytes, used, device.memory_nbytes);
    const size_t usable = up_to(nbytes, page());
    char *base = (char *)mmap(nullptr, usable + 2 * page(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return fail(hipErrorOutOfMemory, "the host has no %zu bytes more", nbytes);
    mprotect(base, page(), PROT_NONE);
    mprotect(base + page() + usable, page(), PROT_NONE);
    Allocation a = {nbytes, where, base + page(), base + page() + usable};
    char *at = a.end - up_to(nbytes, alignment);
    if (!poison_pages(a.mapping, a.end)) return munmap(base, usable + 2 * page()), fail(hipErrorOutOfMemory, "the host maps no %zu bytes more", nbytes);
    edges((uintptr_t)at, a, [](char *from, char *to) { memset(from, edge, to - from); });
    allocations[(uintptr_t)at] = a;
    if (where == Where::device) used += nbytes;
    alive[where == Where::device ? ALLOCATIONS : PINNED]++;
    *out = at;
    return hipSuccess;
}

hipError_t release(void *at, Where where) {
    if (!at) return hipSuccess;
    auto found = allocations.find((uintptr_t)at);
    if (found == allocations.end() || found->second.where != where) return fail(hipErrorInvalidDevicePointer, "free of %p: %s", at, near_to(at).c_str());
    hipError_t error = overrun("something");
    const Allocation a = found->second;
    munmap(a.mapping - page(), a.end - a.mapping + 2 * page());
    if (where == Where::device) used -= a.nbytes;
    alive[where == Where::device ? ALLOCATIONS : PINNED]--;
    allocations.erase(found);
    return error;
}

bool inside(const void *at, size_t nbytes, Where where) {
    auto *a = around(at);
    return a && a->second.where == where && (uintptr_t)at - a->first <= a->second.nbytes && nbytes <= a->second.nbytes - ((uintptr_t)at - a->first);
}

std::string near_to(const void *at) {
    char text[200];
    auto next = allocations.upper_bound((uintptr_t)at);
    auto *before = around(at);
    if (before && (uintptr_t)at <= (uintptr_t)before->second.end + page()) {
        const long past = (long)((uintptr_t)at - before->first - before->second.nbytes);
        if (past >= 0)
            snprintf(text, sizeof text, "%ld bytes past the end of an allocation of %zu bytes", past, before->second.nbytes);
        else
            snprintf(text, sizeof text, "%zu bytes into an allocation of %zu bytes", (size_t)((uintptr_t)at - before->first), before->second.nbytes);
    } else if (next != allocations.end() && (uintptr_t)at + page() >= (uintptr_t)next->second.mapping)
        snprintf(text, sizeof text, "%zu bytes before an allocation of %zu bytes", (size_t)(next->first - (uintptr_t)at), next->second.nbytes);
    else
        snprintf(text, sizeof text, "%p is near no allocation", at);
    return text;
}

hipError_t overrun(const char *who) {
    hipError_t error = hipSuccess;
    for (auto &[at, a] : allocations)
        edges(at, a, [&, begin = (char *)at, n = a.nbytes](char *from, char *to) {
            if (untouched(from, to)) return;
            char *odd = std::find_if(from, to, [](char byte) { return (unsigned char)byte != edge; });
            error = fail(hipErrorIllegalAddress, "%s wrote byte %ld of an allocation of %zu bytes", who, (long)(odd - begin), n);
            memset(from, edge, to - from);  // told once
        });
    return error;
}

size_t used_nbytes() { return used; }

std::vector<std::pair<uint64_t, uint64_t>> ranges() {
    std::vector<std::pair<uint64_t, uint64_t>> all;
    for (auto &[at, a] : allocations) all.push_back({at, a.nbytes});
    return all;
}

// ---- entry points
API hipError_t hipMalloc(void **out, size_t nbytes) {
    return enter([&] {
        hipError_t error = forbid_while_capturing("hipMalloc");
        return error ? error : allocate(out, nbytes, Where::device);
    });
}
API hipError_t hipFree(void *at) {
    return enter([&] {
        hipError_t error = forbid_while_capturing("hipFree");
        if (!error) error = finish_all();
        hipError_t freed = release(at, Where::device);
        return error ? error : freed;
    });
}
API hipError_t hipHostMalloc(void **out, size_t nbytes, unsigned) {
    return enter([&] { return allocate(out, nbytes, Where::pinned); });
}
API hipError_t hipHostFree(void *at) {
    return enter([&] {
        hipError_t error = finish_all();
        hipError_t freed = release(at, Where::pinned);
        return error ? error : freed;
    });
}
API hipError_t hipMallocAsync(void **out, size_t nbytes, void *) {
    return enter([&] { return allocate(out, nbytes, Where::device); });
}
API hipError_t hipFreeAsync(void *at, void *stream) {
    return enter([&] { return submit(stream, {hipGraphNodeTypeEmpty, nullptr, [at] { return release(at, Where::device); }}); });
}

API hipError_t hipPointerGetAttributes(hipPointerAttribute_t *out, const void *at) {
    return enter([&] {
        const bool on_device = inside(at, 0, Where::device), pinned = inside(at, 0, Where::pinned);
        *out = {on_device ? hipMemoryTypeDevice : pinned ? hipMemoryTypeHost : hipMemoryTypeUnregistered, 0, on_device ? (void *)at : nullptr, pinned ? (void *)at : nullptr, 0, 0};
        return hipSuccess;
    });
}

API hipError_t hipMemGetAddressRange(void **base, size_t *nbytes, void *at) {
    return enter([&] {
        if (!inside(at, 0, Where::device)) return fail(hipErrorInvalidDevicePointer, "%s", near_to(at).c_str());
        auto *a = around(at);
        *base = (void *)a->first;
        *nbytes = a->second.nbytes;
        return hipSuccess;
    });
}
