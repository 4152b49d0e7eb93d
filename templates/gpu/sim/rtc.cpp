// hipRTC: programs are kept here and compiled by a function of Python's.
#include <atomic>
#include <cstddef>
#include <cstring>
#include <string>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

enum hiprtcResult : int { HIPRTC_SUCCESS = 0, HIPRTC_ERROR_INVALID_INPUT = 3, HIPRTC_ERROR_INVALID_PROGRAM = 4, HIPRTC_ERROR_INVALID_OPTION = 5, HIPRTC_ERROR_COMPILATION = 6,
                          HIPRTC_ERROR_INTERNAL_ERROR = 11 };

namespace {
struct Program {
    std::string source, name, log;
    std::vector<char> code;
};

// Compiles and hands over by `rlx_rtc_result` to the program; returns a hiprtcResult.
using Compile = int (*)(void *program, const char *source, const char *name, int count, const char **options);
Compile compile;
std::atomic<long> alive;
}  // namespace

API void rlx_rtc_connect(Compile function) { compile = function; }
API long rlx_rtc_alive() { return alive; }
API void rlx_rtc_result(void *program, const char *code, size_t nbytes, const char *log) {
    auto *p = (Program *)program;
    p->code.assign(code, code + nbytes);
    p->log = log;
}

API hiprtcResult hiprtcVersion(int *major, int *minor) {
    *major = 9;
    *minor = 0;
    return HIPRTC_SUCCESS;
}

API const char *hiprtcGetErrorString(hiprtcResult result) {
    switch (result) {
    case HIPRTC_SUCCESS: return "HIPRTC_SUCCESS";
    case HIPRTC_ERROR_INVALID_INPUT: return "HIPRTC_ERROR_INVALID_INPUT";
    case HIPRTC_ERROR_INVALID_PROGRAM: return "HIPRTC_ERROR_INVALID_PROGRAM";
    case HIPRTC_ERROR_INVALID_OPTION: return "HIPRTC_ERROR_INVALID_OPTION";
    case HIPRTC_ERROR_COMPILATION: return "HIPRTC_ERROR_COMPILATION";
    case HIPRTC_ERROR_INTERNAL_ERROR: return "HIPRTC_ERROR_INTERNAL_ERROR";
    }
    return "hiprtc error";
}

API hiprtcResult hiprtcCreateProgram(void **out, const char *source, const char *name, int headers, const char **, const char **) {
    if (!out || !source || headers) return HIPRTC_ERROR_INVALID_INPUT;  // kernels here include nothing
    *out = new Program{source, name ? name : "program.hip", "", {}};
    alive++;
    return HIPRTC_SUCCESS;
}

API hiprtcResult hiprtcDestroyProgram(void **program) {
    if (!program || !*program) return HIPRTC_ERROR_INVALID_PROGRAM;
    delete (Program *)*program;
    *program = nullptr;
    alive--;
    return HIPRTC_SUCCESS;
}

API hiprtcResult hiprtcCompileProgram(void *program, int count, const char **options) {
    auto *p = (Program *)program;
    if (!p) return HIPRTC_ERROR_INVALID_PROGRAM;
    if (!compile) return HIPRTC_ERROR_INTERNAL_ERROR;
    return (hiprtcResult)compile(program, p->source.c_str(), p->name.c_str(), count, options);
}

API hiprtcResult hiprtcGetProgramLogSize(void *program, size_t *nbytes) {
    *nbytes = ((Program *)program)->log.size() + 1;
    return HIPRTC_SUCCESS;
}
API hiprtcResult hiprtcGetProgramLog(void *program, char *out) {
    strcpy(out, ((Program *)program)->log.c_str());
    return HIPRTC_SUCCESS;
}
API hiprtcResult hiprtcGetCodeSize(void *program, size_t *nbytes) {
    *nbytes = ((Program *)program)->code.size();
    return *nbytes ? HIPRTC_SUCCESS : HIPRTC_ERROR_INVALID_PROGRAM;
}
API hiprtcResult hiprtcGetCode(void *program, char *out) {
    auto &code = ((Program *)program)->code;
    memcpy(out, code.data(), code.size());
    return HIPRTC_SUCCESS;
}
