// What the runtime and a kernel compiled as host code tell each other: plain data, so that neither needs the other's names.
#pragma once

struct RlxIndex { unsigned x, y, z; };

enum RlxExchange : unsigned { RLX_SHUFFLE, RLX_BALLOT };

// The thread that a kernel now runs as.  The runtime writes it whenever it goes on to another thread.
struct RlxHere {
    RlxIndex thread, block, block_dim, grid_dim;
    unsigned lane;  // within its wave
    char *dynamic_shared;
    void (*barrier)(unsigned line);
    // Hands a value to the wave and takes one back.  source: whose value a shuffle takes.  line: where in the text; only lanes at one line meet.
    unsigned long long (*exchange)(RlxExchange what, unsigned long long value, unsigned source, unsigned line);
};

struct RlxKernel {
    void (*call)(void **arguments);
    unsigned count;          // of arguments
    const unsigned *sizes;   // of each, in bytes
    const unsigned *aligns;
    unsigned most_threads;   // __launch_bounds__
    unsigned shared_nbytes;  // of __shared__ variables, where the device compiler told; else 0
};

// Exported by each module of kernels as `rlx_module`, beside one `rlx_kernel_NAME` for each kernel.
struct RlxModule {
    const char *arch;
    unsigned wave;
    RlxHere *here;
    char *shared, *shared_end;  // all its __shared__ variables
};
