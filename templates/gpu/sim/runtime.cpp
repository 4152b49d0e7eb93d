// The simulated HIP runtime in one translation unit: its parts share nearly all their headers.
#include "blocks.cpp"
#include "control.cpp"
#include "copies.cpp"
#include "device.cpp"
#include "graphs.cpp"
#include "memory.cpp"
#include "modules.cpp"
#include "streams.cpp"
