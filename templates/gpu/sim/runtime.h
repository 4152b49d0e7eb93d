// What the parts of the simulated runtime share.  One lock serves them all: the device does one thing at a time.
#pragma once
#include <cstdarg>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "hip.h"
#include "kernel.h"

#define API extern "C" __attribute__((visibility("default")))

// ---- the device that is simulated, and who helps (control.cpp)
constexpr unsigned most_threads = 1024;

struct Device {
    bool present = false, machine_code = false, lazy = true;
    std::string arch = "gfx1100";
    unsigned wave = 32;
    size_t shared_nbytes = 0, memory_nbytes = 0;  // of a block, of the device
    double patience_s = 0;  // of the processor's time, in which some thread of a kernel must end; 0 is no end of it
    std::string name() const { return "simulated " + arch + (machine_code ? " (machine code)" : " (host code)"); }
};
extern Device device;

// Functions of Python's that run AMD machine code.  Each writes what went wrong to `text` and returns a hipError_t.
struct Machine {
    int (*load)(const void *image, size_t nbytes, uint64_t *handle, char *text, size_t text_nbytes);
    // arguments: pairs of offset and size, as many as fit; *count: how many there are.
    int (*describe)(uint64_t handle, const char *kernel, uint32_t *arguments, uint32_t *count, uint32_t *threads, uint32_t *shared_nbytes, char *text, size_t text_nbytes);
    int (*launch)(uint64_t handle, const char *kernel, const uint32_t *grid, const uint32_t *block, size_t shared_nbytes, const void *arguments, size_t nbytes,
                  char *text, size_t text_nbytes);
    void (*unload)(uint64_t handle);
};
extern Machine machine;
extern bool in_python;  // while it launches: garbage may be collected there, memory given back, which cannot wait for what runs

// ---- errors (control.cpp)
// Keeps what hipGetErrorString then says beside the error's own words, for this thread.
hipError_t fail(hipError_t error, const char *format, ...) __attribute__((format(printf, 2, 3)));
void begin_call();                // of an entry point: what failed before is told
void remember(hipError_t error);  // for hipGetLastError
extern std::recursive_mutex lock;

// The body of an entry point: alone on the device, its error kept for hipGetLastError.
template <class Body> hipError_t enter(Body body) {
    std::lock_guard<std::recursive_mutex> alone(lock);
    begin_call();
    hipError_t error = body();
    if (error != hipSuccess) remember(error);
    return error;
}
hipError_t need_device();

// ---- memory (memory.cpp)
enum class Where { device, pinned };
hipError_t allocate(void **out, size_t nbytes, Where where);
hipError_t release(void *at, Where where);
bool inside(const void *at, size_t nbytes, Where where);
std::string near_to(const void *at);   // the allocation that an address belongs to or just misses
hipError_t overrun(const char *who);   // an error when bytes beside an allocation have changed
size_t used_nbytes();
std::vector<std::pair<uint64_t, uint64_t>> ranges();  // address and size of what is allocated

// ---- streams (streams.cpp)
using Task = std::function<hipError_t()>;

struct Launch;
struct Node {
    hipGraphNodeType type;
    std::shared_ptr<Launch> launch;  // of a kernel node
    Task run;
};
struct Graph { std::vector<std::shared_ptr<Node>> nodes; };
struct GraphExec { std::map<const Node *, size_t> place; std::vector<Node> nodes; };
using Executable = std::shared_ptr<GraphExec>;

struct Capture {
    std::unique_ptr<Graph> graph;
    hipStreamCaptureMode mode;
    bool broken;
    std::thread::id by;  // who began it
    // Whether this thread may not do now what a capture cannot hold.
    bool forbids() const { return mode == hipStreamCaptureModeGlobal || (mode == hipStreamCaptureModeThreadLocal && by == std::this_thread::get_id()); }
};
struct Stream {
    struct Work { uint64_t order; Task run; };
    bool blocking = true;  // takes turns with the null stream
    std::deque<Work> work;
    std::unique_ptr<Capture> capture;
};

hipError_t find_stream(void *handle, Stream **out);
hipError_t submit(void *stream, Node node);
hipError_t finish_all();                // all that was submitted to any stream
hipError_t finish_null();               // all that the null stream waits for
hipError_t forbid_while_capturing(const char *what);

// ---- modules (modules.cpp)
hipError_t make_launch(std::shared_ptr<Launch> *out, void *function, dim3 grid, dim3 block, unsigned shared_nbytes, void **params, void **extra);
Node kernel_node(std::shared_ptr<Launch> launch);
hipKernelNodeParams parameters(const Launch &launch);

// ---- running a kernel that is host code (blocks.cpp)
struct Site { const char *kernel; const RlxKernel *code; const RlxModule *module; };
hipError_t run_grid(const Site &site, void **arguments, dim3 grid, dim3 block, size_t shared_nbytes);

// ---- what is alive, for those who look for leaks
enum Counted { ALLOCATIONS, PINNED, STREAMS, EVENTS, MODULES, GRAPHS, GRAPH_EXECS, KINDS };
extern int64_t alive[KINDS];
