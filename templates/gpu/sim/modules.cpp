// Modules and launches: host code is a shared object that is run here, AMD machine code is run by Python's functions.
#include "runtime.h"

#include <algorithm>
#include <cstring>
#include <dlfcn.h>
#include <elf.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

constexpr int amdgpu = 224;  // EM_AMDGPU

struct Module {
    void *library = nullptr;                // of host code
    const RlxModule *host = nullptr;
    uint64_t handle = 0;                    // of machine code
    ~Module() {
        if (library) dlclose(library);
        if (handle && machine.unload) machine.unload(handle);  // Python may be gone before the last module is
    }
};

struct Slot { size_t offset, nbytes; };     // an argument's place

struct Function {
    std::shared_ptr<Module> module;
    std::string name;
    const RlxKernel *code;                  // of host code
    std::vector<Slot> slots;
    size_t nbytes;                          // of all arguments
    unsigned most_threads, shared_nbytes;
};

struct Launch {
    std::shared_ptr<Function> function;
    dim3 grid, block;
    unsigned shared_nbytes;
    std::vector<char> packed;               // the arguments
    std::vector<void *> pointers;           // to each of them
};

namespace {
std::map<void *, std::shared_ptr<Module>> modules;
std::map<void *, std::shared_ptr<Function>> functions;

using Bytes = std::vector<char>;
constexpr size_t largest_image = 1 << 30;

// Reads through the system, which says so where nothing is: an image that is damaged may point anywhere.
bool read_at(const char *from, size_t nbytes, Bytes *out) {
    if (nbytes > largest_image) return false;
    out->resize(nbytes);
    iovec to = {out->data(), nbytes}, source = {(void *)from, nbytes};
    return process_vm_readv(getpid(), &to, 1, &source, 1, 0) == (ssize_t)nbytes;
}

// An image comes without its size: it ends where its last section or its section table does.
hipError_t read_image(const void *image, Bytes *out) {
    Bytes head, table;
    const char *base = (const char *)image;
    if (!image || !read_at(base, sizeof(Elf64_Ehdr), &head) || memcmp(head.data(), ELFMAG, SELFMAG) != 0)
        return fail(hipErrorInvalidImage, "the image does not start as an ELF file does");
    const Elf64_Ehdr header = *(const Elf64_Ehdr *)head.data();
    size_t end = header.e_shoff + (size_t)header.e_shnum * sizeof(Elf64_Shdr);
    if (header.e_shentsize != sizeof(Elf64_Shdr) || !read_at(base + header.e_shoff, header.e_shnum * sizeof(Elf64_Shdr), &table))
        return fail(hipErrorInvalidImage, "the image's section table is damaged");
    for (int i = 0; i < header.e_shnum; i++) {
        const Elf64_Shdr &section = ((const Elf64_Shdr *)table.data())[i];
        if (section.sh_type != SHT_NOBITS) end = std::max(end, (size_t)(section.sh_offset + section.sh_size));
    }
    return read_at(base, end, out) ? hipSuccess : fail(hipErrorInvalidImage, "the image's sections reach past its end");
}

// The system's loader takes a path that it knows for the library that it has: each module gets a spelling of its own.
std::string path_of(int file) {
    static unsigned long loads;
    std::string path = "/proc/self/fd";
    for (unsigned long n = ++loads; n; n >>= 1) path += n & 1 ? "/./" : "//";
    return path + "/" + std::to_string(file);
}

hipError_t load_host(Module *out, const Bytes &image) {
    int file = memfd_create("rlxpy-kernels", 0);
    if (file < 0 || write(file, image.data(), image.size()) != (ssize_t)image.size()) {
        if (file >= 0) close(file);
        return fail(hipErrorInvalidImage, "no room for %zu bytes of code", image.size());
    }
    out->library = dlopen(path_of(file).c_str(), RTLD_NOW | RTLD_LOCAL);
    close(file);
    if (!out->library) return fail(hipErrorInvalidImage, "%s", dlerror());
    out->host = (const RlxModule *)dlsym(out->library, "rlx_module");
    if (!out->host) return fail(hipErrorInvalidImage, "a shared object that is not from the simulated hipRTC");
    if (out->host->wave != device.wave) return fail(hipErrorNoBinaryForGpu, "compiled for %s, whose wave has %u lanes, not %u", out->host->arch, out->host->wave, device.wave);
    return hipSuccess;
}

hipError_t load_machine(Module *out, const Bytes &image) {
    char text[900] = "";
    if (!device.machine_code) return fail(hipErrorNoBinaryForGpu, "AMD machine code, and this device runs host code: simulated(arch, by=\"isa\") runs it");
    auto error = (hipError_t)machine.load(image.data(), image.size(), &out->handle, text, sizeof text);
    return error ? fail(error, "%s", text) : hipSuccess;
}

hipError_t load(void **out, const void *image) {
    if (hipError_t error = need_device()) return error;
    Bytes bytes;
    if (hipError_t error = read_image(image, &bytes)) return error;
    auto module = std::make_shared<Module>();
    const bool foreign = ((const Elf64_Ehdr *)bytes.data())->e_machine == amdgpu;
    if (hipError_t error = foreign ? load_machine(module.get(), bytes) : load_host(module.get(), bytes)) return error;
    modules[module.get()] = module;
    alive[MODULES]++;
    *out = module.get();
    return hipSuccess;
}

hipError_t find_host(Function *f) {
    f->code = (const RlxKernel *)dlsym(f->module->library, ("rlx_kernel_" + f->name).c_str());
    if (!f->code) return fail(hipErrorNotFound, "the module has no kernel %s", f->name.c_str());
    for (unsigned i = 0; i < f->code->count; i++) {
        const size_t align = f->code->aligns[i], offset = (f->nbytes + align - 1) / align * align;
        f->slots.push_back({offset, f->code->sizes[i]});
        f->nbytes = offset + f->code->sizes[i];
    }
    f->most_threads = f->code->most_threads;
    f->shared_nbytes = f->code->shared_nbytes;
    return hipSuccess;
}

hipError_t find_machine(Function *f) {
    char text[900] = "";
    uint32_t pairs[2 * 256], count = 256;
    auto error = (hipError_t)machine.describe(f->module->handle, f->name.c_str(), pairs, &count, &f->most_threads, &f->shared_nbytes, text, sizeof text);
    if (error) return fail(error, "%s", text);
    for (uint32_t i = 0; i < count; i++) {
        f->slots.push_back({pairs[2 * i], pairs[2 * i + 1]});
        f->nbytes = std::max(f->nbytes, f->slots.back().offset + f->slots.back().nbytes);
    }
    return hipSuccess;
}

hipError_t get_function(void **out, void *handle, const char *name) {
    auto found = modules.find(handle);
    if (found == modules.end()) return fail(hipErrorInvalidHandle, "%p is no loaded module", handle);
    if (!name) return fail(hipErrorInvalidValue, "no name");
    for (auto &[key, f] : functions)
        if (f->module == found->second && f->name == name) return *out = key, hipSuccess;
    auto f = std::make_shared<Function>(Function{found->second, name, nullptr, {}, 0, most_threads, 0});
    if (hipError_t error = found->second->library ? find_host(f.get()) : find_machine(f.get())) return error;
    functions[f.get()] = f;
    *out = f.get();
    return hipSuccess;
}

hipError_t unload(void *handle) {
    auto found = modules.find(handle);
    if (found == modules.end()) return fail(hipErrorInvalidHandle, "%p is no loaded module", handle);
    for (auto f = functions.begin(); f != functions.end();) f = f->second->module == found->second ? functions.erase(f) : std::next(f);
    modules.erase(found);  // work that waits still holds it
    alive[MODULES]--;
    return hipSuccess;
}

// ---- launches
hipError_t check_geometry(const Function &f, dim3 grid, dim3 block, unsigned shared_nbytes) {
    const size_t threads = (size_t)block.x * block.y * block.z;
    const char *name = f.name.c_str();
    if (!grid.x || !grid.y || !grid.z || !threads) return fail(hipErrorInvalidValue, "%s: a grid of (%u, %u, %u) blocks of (%u, %u, %u) threads", name, grid.x, grid.y, grid.z, block.x, block.y, block.z);
    if (std::max({block.x, block.y, block.z}) > most_threads || threads > most_threads) return fail(hipErrorInvalidValue, "%s: %zu threads in a block, at most %u", name, threads, most_threads);
    if (threads > f.most_threads) return fail(hipErrorLaunchFailure, "%s: %zu threads in a block, __launch_bounds__ promises at most %u", name, threads, f.most_threads);
    if ((uint64_t)grid.x * block.x >> 32) return fail(hipErrorInvalidConfiguration, "%s: %u blocks of %u threads are 2^32 or more", name, grid.x, block.x);
    if (grid.y > 65535 || grid.z > 65535) return fail(hipErrorInvalidConfiguration, "%s: a grid of (%u, %u, %u), at most 65535 in y and z", name, grid.x, grid.y, grid.z);
    if (shared_nbytes + f.shared_nbytes > device.shared_nbytes)
        return fail(hipErrorInvalidValue, "%s: %u + %u bytes of shared memory, at most %zu", name, f.shared_nbytes, shared_nbytes, device.shared_nbytes);
    return hipSuccess;
}

hipError_t pack_extra(const Function &f, std::vector<char> *packed, void **extra) {
    const char *from = nullptr;
    size_t nbytes = 0;
    for (; *extra != (void *)HIP_LAUNCH_PARAM_END; extra += 2)
        if (*extra == (void *)HIP_LAUNCH_PARAM_BUFFER_POINTER)
            from = (const char *)extra[1];
        else if (*extra == (void *)HIP_LAUNCH_PARAM_BUFFER_SIZE)
            nbytes = *(size_t *)extra[1];
    if (nbytes < f.nbytes || nbytes > (f.nbytes + 7) / 8 * 8)
        return fail(hipErrorInvalidValue, "%s takes %zu bytes of arguments (%zu of them), %zu were given", f.name.c_str(), f.nbytes, f.slots.size(), nbytes);
    packed->assign(from, from + f.nbytes);
    return hipSuccess;
}

hipError_t pack_params(const Function &f, std::vector<char> *packed, void **params) {
    packed->resize(f.nbytes);
    if (!params && !f.slots.empty()) return fail(hipErrorInvalidValue, "%s takes %zu arguments, none were given", f.name.c_str(), f.slots.size());
    for (size_t i = 0; i < f.slots.size(); i++) memcpy(packed->data() + f.slots[i].offset, params[i], f.slots[i].nbytes);
    return hipSuccess;
}

hipError_t run(Launch &l) {
    const Function &f = *l.function;
    if (f.code) {
        hipError_t error = run_grid({f.name.c_str(), f.code, f.module->host}, l.pointers.data(), l.grid, l.block, l.shared_nbytes);
        return error ? error : overrun(f.name.c_str());
    }
    char text[900] = "";
    in_python = true;
    auto error = (hipError_t)machine.launch(f.module->handle, f.name.c_str(), &l.grid.x, &l.block.x, l.shared_nbytes, l.packed.data(), l.packed.size(), text, sizeof text);
    in_python = false;
    return error ? fail(error, "%s", text) : hipSuccess;
}
}  // namespace

hipError_t make_launch(std::shared_ptr<Launch> *out, void *handle, dim3 grid, dim3 block, unsigned shared_nbytes, void **params, void **extra) {
    auto found = functions.find(handle);
    if (found == functions.end()) return fail(hipErrorInvalidHandle, "%p is no kernel of a loaded module", handle);
    const Function &f = *found->second;
    if (hipError_t error = check_geometry(f, grid, block, shared_nbytes)) return error;
    if (params && extra) return fail(hipErrorInvalidValue, "%s: arguments both ways", f.name.c_str());
    auto made = std::make_shared<Launch>(Launch{found->second, grid, block, shared_nbytes, {}, {}});
    if (hipError_t error = extra ? pack_extra(f, &made->packed, extra) : pack_params(f, &made->packed, params)) return error;
    for (const Slot &slot : f.slots) made->pointers.push_back(made->packed.data() + slot.offset);
    *out = std::move(made);
    return hipSuccess;
}

Node kernel_node(std::shared_ptr<Launch> launch) {
    return {hipGraphNodeTypeKernel, launch, [launch] { return run(*launch); }};
}

hipKernelNodeParams parameters(const Launch &l) {
    return {l.block, nullptr, l.function.get(), l.grid, const_cast<void **>(l.pointers.data()), l.shared_nbytes};
}

// ---- entry points
API hipError_t hipModuleLoadData(void **out, const void *image) {
    return enter([&] { return load(out, image); });
}
API hipError_t hipModuleLoadDataEx(void **out, const void *image, unsigned, void *, void **) { return hipModuleLoadData(out, image); }

API hipError_t hipModuleUnload(void *handle) {
    return enter([&] { return unload(handle); });
}
API hipError_t hipModuleGetFunction(void **out, void *module, const char *name) {
    return enter([&] { return get_function(out, module, name); });
}
API hipError_t hipFuncGetAttribute(int *out, int attribute, void *function) {
    return enter([&] {
        auto found = functions.find(function);
        if (found == functions.end()) return fail(hipErrorInvalidHandle, "%p is no kernel of a loaded module", function);
        *out = attribute == hipFuncMaxThreadsPerBlock ? (int)found->second->most_threads : attribute == hipFuncSharedSizeBytes ? (int)found->second->shared_nbytes : 0;
        return hipSuccess;
    });
}

API hipError_t hipModuleLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared_nbytes, void *stream,
                                     void **params, void **extra) {
    return enter([&] {
        std::shared_ptr<Launch> launch;
        if (hipError_t error = make_launch(&launch, function, {gx, gy, gz}, {bx, by, bz}, shared_nbytes, params, extra)) return error;
        return submit(stream, kernel_node(std::move(launch)));
    });
}
