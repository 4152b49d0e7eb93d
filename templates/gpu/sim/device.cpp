// The one device: what it says of itself.
#include "runtime.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {
constexpr int version = 71526333;  // HIP 7.15
constexpr int processors = 2, threads_per_processor = 2048, most_blocks_yz = 65535, most_blocks_x = 0x7fffffff, registers = 65536, kilohertz = 1000000;

// gfx90a is 9.0, gfx1100 is 11.0: the last two digits are minor and stepping.
int major_of(const std::string &arch) { return atoi(arch.substr(3, arch.size() - 5).c_str()); }
int minor_of(const std::string &arch) { return (int)strtol(arch.substr(arch.size() - 2, 1).c_str(), nullptr, 16); }

hipError_t need_ordinal(int ordinal) {
    if (hipError_t error = need_device()) return error;
    return ordinal == 0 ? hipSuccess : fail(hipErrorInvalidDevice, "device %d of one", ordinal);
}

struct Attribute { int number, value; };

int attribute(int number) {  // hipDeviceAttribute_t
    const Attribute known[] = {
        {5, kilohertz}, {23, major_of(device.arch)}, {26, most_threads}, {27, most_threads}, {28, most_threads}, {29, most_blocks_x}, {30, most_blocks_yz}, {31, most_blocks_yz},
        {56, most_threads}, {57, threads_per_processor}, {61, minor_of(device.arch)}, {63, processors}, {71, registers}, {74, (int)device.shared_nbytes}, {87, (int)device.wave},
    };
    for (const Attribute &a : known)
        if (a.number == number) return a.value;
    return 0;
}
}  // namespace

API hipError_t hipInit(unsigned) { return enter(need_device); }
API hipError_t hipRuntimeGetVersion(int *out) { return *out = version, hipSuccess; }
API hipError_t hipDriverGetVersion(int *out) { return *out = version, hipSuccess; }

API hipError_t hipGetDeviceCount(int *out) {
    *out = device.present;
    return enter(need_device);
}
API hipError_t hipGetDevice(int *out) {
    *out = 0;
    return enter(need_device);
}
API hipError_t hipDeviceGet(int *out, int ordinal) {
    *out = ordinal;
    return enter([&] { return need_ordinal(ordinal); });
}
API hipError_t hipSetDevice(int ordinal) {
    return enter([&] { return need_ordinal(ordinal); });
}

API hipError_t hipDeviceGetName(char *out, int nbytes, int ordinal) {
    return enter([&] {
        snprintf(out, nbytes, "%s", device.name().c_str());
        return need_ordinal(ordinal);
    });
}
API hipError_t hipDeviceTotalMem(size_t *out, int ordinal) {
    return enter([&] {
        *out = device.memory_nbytes;
        return need_ordinal(ordinal);
    });
}
API hipError_t hipDeviceComputeCapability(int *major, int *minor, int ordinal) {
    return enter([&] {
        *major = major_of(device.arch);
        *minor = minor_of(device.arch);
        return need_ordinal(ordinal);
    });
}
API hipError_t hipDeviceGetAttribute(int *out, int number, int ordinal) {
    return enter([&] {
        *out = attribute(number);
        return need_ordinal(ordinal);
    });
}

API hipError_t hipGetDevicePropertiesR0600(hipDeviceProp_t *out, int ordinal) {
    return enter([&] {
        memset(out, 0, sizeof *out);
        if (hipError_t error = need_ordinal(ordinal)) return error;
        snprintf(out->name, sizeof out->name, "%s", device.name().c_str());
        snprintf(out->gcnArchName, sizeof out->gcnArchName, "%s", device.arch.c_str());
        out->totalGlobalMem = device.memory_nbytes;
        out->sharedMemPerBlock = out->sharedMemPerMultiprocessor = device.shared_nbytes;
        out->regsPerBlock = registers;
        out->warpSize = (int)device.wave;
        out->maxThreadsPerBlock = most_threads;
        out->maxGridSize[0] = most_blocks_x;
        out->maxGridSize[1] = out->maxGridSize[2] = most_blocks_yz;
        for (int &d : out->maxThreadsDim) d = most_threads;
        out->clockRate = kilohertz;
        out->major = major_of(device.arch);
        out->minor = minor_of(device.arch);
        out->multiProcessorCount = processors;
        out->maxThreadsPerMultiProcessor = threads_per_processor;
        return hipSuccess;
    });
}

API hipError_t hipMemGetInfo(size_t *free_nbytes, size_t *total) {
    return enter([&] {
        *total = device.memory_nbytes;
        *free_nbytes = device.memory_nbytes - used_nbytes();
        return need_device();
    });
}
