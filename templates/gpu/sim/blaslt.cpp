// A small hipBLASLt: products are computed on the processor, when the stream comes to them.  Sums go in two parts through the workspace where there is
// room, so that a workspace that is not there, or that another uses too, shows.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <dlfcn.h>
#include <memory>
#include <vector>

#define API extern "C" __attribute__((visibility("default")))

enum Status : int { SUCCESS, NOT_INITIALIZED, ALLOC_FAILED, INVALID_VALUE, MAPPING_ERROR, EXECUTION_FAILED, INTERNAL_ERROR, NOT_SUPPORTED };

namespace {
enum Type : int { R_32F = 0, R_16F = 2, R_16BF = 14 };
enum Compute : int { COMPUTE_32F = 2, COMPUTE_32F_FAST_TF32 = 6 };
enum Operation : int { OP_N = 111, OP_T = 112 };
enum LayoutAttribute : int { BATCH_COUNT, STRIDED_BATCH_OFFSET };
enum DescAttribute : int { TRANSA, TRANSB, EPILOGUE, BIAS_POINTER };
enum : uint32_t { PLAIN = 1, BIAS = 4 };
constexpr int MAX_WORKSPACE_BYTES = 1;
constexpr int illegal_address = 700;  // hipErrorIllegalAddress
constexpr uint64_t magic = 0x726c785f67656d6d;

struct Layout { int type; uint64_t rows, columns; int64_t step; int32_t count = 1; int64_t stride = 0; };
struct Desc { int compute; int32_t a = OP_N, b = OP_N; uint32_t epilogue = PLAIN; const void *bias = nullptr; };
struct Preference { uint64_t workspace = 0; };
struct Algo { uint64_t made, shape; size_t workspace; };  // hipblasLtMatmulAlgo_t: 16 bytes of the library's own, and what it needs
struct Result { Algo algo; size_t workspace; int state; float waves; int reserved[4]; };

struct Problem {
    Desc desc;
    Layout a, b, c, d;
    uint64_t m() const { return d.rows; }
    uint64_t n() const { return d.columns; }
    uint64_t k() const { return desc.a == OP_N ? a.columns : a.rows; }
    uint64_t shape() const { return (m() * 1000003 + n()) * 1000003 + k() * 31 + (desc.a == OP_T) * 2 + (desc.b == OP_T); }
    size_t parts_nbytes() const { return 2 * m() * n() * sizeof(float); }
};

// What is wrong with the layouts; "" where nothing is.
const char *wrong(const Problem &p) {
    for (const Layout *l : {&p.a, &p.b, &p.c, &p.d}) {
        if (l->step < (int64_t)l->rows) return "a leading dimension is less than the rows";
        if (l->count != p.d.count) return "batches of several sizes";
        if (l->type != p.d.type) return "operands of several types";
    }
    const uint64_t am = p.desc.a == OP_N ? p.a.rows : p.a.columns, bn = p.desc.b == OP_N ? p.b.columns : p.b.rows, bk = p.desc.b == OP_N ? p.b.rows : p.b.columns;
    if (am != p.m() || bn != p.n() || bk != p.k() || p.c.rows != p.m() || p.c.columns != p.n()) return "shapes that do not fit";
    if (!p.m() || !p.n() || !p.k()) return "an empty product";
    return "";
}

bool supported(const Problem &p) {
    const bool narrow = p.d.type == R_16F || p.d.type == R_16BF;
    return p.desc.compute == COMPUTE_32F ? narrow || p.d.type == R_32F : p.desc.compute == COMPUTE_32F_FAST_TF32 && p.d.type == R_32F;
}

// ---- the runtime, which this process has loaded
template <class F> F runtime(const char *name) {
    static void *library = dlopen("libamdhip64.so", RTLD_LAZY | RTLD_NOLOAD);
    return (F)dlsym(library, name);
}
bool inside(const void *at, size_t nbytes) { return runtime<int (*)(const void *, size_t)>("rlx_sim_inside")(at, nbytes); }
int submit(void *stream, int (*run)(void *), void (*drop)(void *), void *data) {
    return runtime<int (*)(void *, int (*)(void *), void (*)(void *), void *)>("rlx_sim_submit")(stream, run, drop, data);
}
int fail(int error, const char *text) { return runtime<int (*)(int, const char *)>("rlx_sim_fail")(error, text); }

// ---- numbers
float bits(uint32_t u) { float f; memcpy(&f, &u, 4); return f; }
uint32_t bits(float f) { uint32_t u; memcpy(&u, &f, 4); return u; }
size_t size_of(int type) { return type == R_32F ? 4 : 2; }

float half(uint16_t h) {
    const uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, rest = h & 1023;
    if (exponent == 31) return bits(sign | 0x7F800000 | rest << 13);
    const float size = exponent ? bits((exponent + 112) << 23 | rest << 13) : (float)rest * 0x1p-24f;
    return sign ? -size : size;
}
uint16_t half(float f) {
    const uint32_t sign = bits(f) >> 16 & 0x8000, size = bits(f) & 0x7FFFFFFF;
    if (size > 0x7F800000) return (uint16_t)(sign | 0x7E00);
    if (size >= 0x477FF000) return (uint16_t)(sign | 0x7C00);  // rounds to infinity
    if (size < 0x38800000) return (uint16_t)(sign | (uint32_t)lrintf(bits(size) * 0x1p24f));
    return (uint16_t)(sign | (size - 0x38000000 + 0xFFF + (size >> 13 & 1)) >> 13);
}
uint16_t brain(float f) {
    const uint32_t u = bits(f);
    return (uint16_t)((u & 0x7FFFFFFF) > 0x7F800000 ? u >> 16 | 64 : (u + 0x7FFF + (u >> 16 & 1)) >> 16);
}
float load(int type, const void *base, int64_t i) {
    if (type == R_32F) return ((const float *)base)[i];
    const uint16_t u = ((const uint16_t *)base)[i];
    return type == R_16F ? half(u) : bits((uint32_t)u << 16);
}
void store(int type, void *base, int64_t i, float f) {
    if (type == R_32F) ((float *)base)[i] = f;
    else ((uint16_t *)base)[i] = type == R_16F ? half(f) : brain(f);
}
float tf32(float f) { return std::isfinite(f) ? bits((bits(f) + 0xFFF + (bits(f) >> 13 & 1)) & 0xFFFFE000) : f; }

// ---- a call, as the stream keeps it
struct Call {
    Problem p;
    float alpha, beta;
    const void *a, *b, *c;
    void *d;
    float *workspace;
    size_t workspace_nbytes;

    // Whether every matrix of a batch is device memory.
    bool reaches(const void *at, const Layout &l) const {
        const size_t each = ((l.columns - 1) * (uint64_t)l.step + l.rows) * size_of(l.type);
        for (int i = 0; i < l.count; i++)
            if (!inside((const char *)at + i * l.stride * (int64_t)size_of(l.type), each)) return false;
        return true;
    }

    std::vector<float> numbers(const void *base, const Layout &l, int batch, bool transposed, bool by_rows) const {
        std::vector<float> all(l.rows * l.columns);
        for (uint64_t j = 0; j < l.columns; j++)
            for (uint64_t i = 0; i < l.rows; i++) {
                const float x = load(l.type, base, batch * l.stride + (int64_t)j * l.step + (int64_t)i);
                all[transposed == by_rows ? j * l.rows + i : i * l.columns + j] = p.desc.compute == COMPUTE_32F_FAST_TF32 ? tf32(x) : x;
            }
        return all;
    }

    void part(const float *x, const float *y, uint64_t from, uint64_t to, float *out) const {  // x[m][k], y[n][k]
        for (uint64_t j = 0; j < p.n(); j++)
            for (uint64_t i = 0; i < p.m(); i++) {
                float sum = 0;
                for (uint64_t k = from; k < to; k++) sum += x[i * p.k() + k] * y[j * p.k() + k];
                out[j * p.m() + i] = sum;
            }
    }

    int run() const {
        if (!reaches(a, p.a) || !reaches(b, p.b) || !reaches(d, p.d) || (beta != 0 && !reaches(c, p.c))) return fail(illegal_address, "hipblasLtMatmul: an operand is not inside one allocation");
        if (p.desc.epilogue == BIAS && !inside(p.desc.bias, p.m() * size_of(p.d.type))) return fail(illegal_address, "hipblasLtMatmul: the bias is not inside one allocation");
        std::vector<float> none;
        float *parts = workspace;
        if (workspace_nbytes < p.parts_nbytes()) none.resize(2 * p.m() * p.n()), parts = none.data();
        for (int batch = 0; batch < p.d.count; batch++) {
            const std::vector<float> x = numbers(a, p.a, batch, p.desc.a == OP_T, true), y = numbers(b, p.b, batch, p.desc.b == OP_T, false);
            part(x.data(), y.data(), 0, p.k() / 2, parts);
            part(x.data(), y.data(), p.k() / 2, p.k(), parts + p.m() * p.n());
            for (uint64_t j = 0; j < p.n(); j++)
                for (uint64_t i = 0; i < p.m(); i++) {
                    float sum = alpha * (parts[j * p.m() + i] + parts[(p.n() + j) * p.m() + i]);
                    if (beta != 0) sum += beta * load(p.c.type, c, batch * p.c.stride + (int64_t)j * p.c.step + (int64_t)i);
                    if (p.desc.epilogue == BIAS) sum += load(p.d.type, p.desc.bias, (int64_t)i);
                    store(p.d.type, d, batch * p.d.stride + (int64_t)j * p.d.step + (int64_t)i, sum);
                }
        }
        return 0;
    }
};

template <class T> Status make(T **out, T value) {
    if (!out) return INVALID_VALUE;
    *out = new T(value);
    return SUCCESS;
}
template <class T> Status drop(T *thing) {
    if (!thing) return INVALID_VALUE;
    delete thing;
    return SUCCESS;
}
template <class T> Status put(T *field, const void *value, size_t nbytes) {
    if (!value || nbytes != sizeof(T)) return INVALID_VALUE;
    memcpy(field, value, nbytes);
    return SUCCESS;
}
}  // namespace

API Status hipblasLtCreate(void **handle) { return make((uint64_t **)handle, magic); }
API Status hipblasLtDestroy(void *handle) { return drop((uint64_t *)handle); }
API Status hipblasLtGetVersion(void *, int *version) { return *version = 0, SUCCESS; }

API Status hipblasLtMatrixLayoutCreate(Layout **out, int type, uint64_t rows, uint64_t columns, int64_t step) { return make(out, Layout{type, rows, columns, step}); }
API Status hipblasLtMatrixLayoutDestroy(Layout *layout) { return drop(layout); }
API Status hipblasLtMatrixLayoutSetAttribute(Layout *layout, int attribute, const void *value, size_t nbytes) {
    switch (attribute) {
    case BATCH_COUNT: return put(&layout->count, value, nbytes);
    case STRIDED_BATCH_OFFSET: return put(&layout->stride, value, nbytes);
    }
    return INVALID_VALUE;
}

API Status hipblasLtMatmulDescCreate(Desc **out, int compute, int scale) { return scale == R_32F ? make(out, Desc{compute}) : INVALID_VALUE; }
API Status hipblasLtMatmulDescDestroy(Desc *desc) { return drop(desc); }
API Status hipblasLtMatmulDescSetAttribute(Desc *desc, int attribute, const void *value, size_t nbytes) {
    switch (attribute) {
    case TRANSA: return put(&desc->a, value, nbytes);
    case TRANSB: return put(&desc->b, value, nbytes);
    case EPILOGUE: return put(&desc->epilogue, value, nbytes);
    case BIAS_POINTER: return put(&desc->bias, value, nbytes);
    }
    return INVALID_VALUE;
}

API Status hipblasLtMatmulPreferenceCreate(Preference **out) { return make(out, Preference{}); }
API Status hipblasLtMatmulPreferenceDestroy(Preference *preference) { return drop(preference); }
API Status hipblasLtMatmulPreferenceSetAttribute(Preference *preference, int attribute, const void *value, size_t nbytes) {
    return attribute == MAX_WORKSPACE_BYTES ? put(&preference->workspace, value, nbytes) : INVALID_VALUE;
}

API Status hipblasLtMatmulAlgoGetHeuristic(void *handle, const Desc *desc, const Layout *a, const Layout *b, const Layout *c, const Layout *d, const Preference *wanted, int most,
                                           Result *results, int *count) {
    if (!handle || !desc || !a || !b || !c || !d || !wanted || !results || !count || most < 1) return INVALID_VALUE;
    const Problem p{*desc, *a, *b, *c, *d};
    *count = 0;
    if (*wrong(p)) return INVALID_VALUE;
    if (!supported(p) || (desc->epilogue != PLAIN && desc->epilogue != BIAS)) return NOT_SUPPORTED;
    const size_t workspace = p.parts_nbytes() <= wanted->workspace ? p.parts_nbytes() : 0;
    results[0] = {{magic, p.shape(), workspace}, workspace, SUCCESS, 1, {}};
    *count = 1;
    return SUCCESS;
}

API Status hipblasLtMatmul(void *handle, const Desc *desc, const float *alpha, const void *a, const Layout *la, const void *b, const Layout *lb, const float *beta, const void *c,
                           const Layout *lc, void *d, const Layout *ld, const Algo *algo, void *workspace, size_t nbytes, void *stream) {
    if (!handle || !desc || !alpha || !a || !la || !b || !lb || !beta || !d || !ld || !algo) return INVALID_VALUE;
    auto call = std::make_unique<Call>(Call{{*desc, *la, *lb, lc ? *lc : *ld, *ld}, *alpha, *beta, a, b, c, d, (float *)workspace, algo->workspace});
    if (*wrong(call->p) || (*beta != 0 && !c)) return INVALID_VALUE;
    if (algo->made != magic || algo->shape != call->p.shape()) return INVALID_VALUE;  // of another product, or of none
    if (algo->workspace && (nbytes < algo->workspace || !inside(workspace, algo->workspace))) return INVALID_VALUE;
    return submit(stream, [](void *it) { return ((const Call *)it)->run(); }, [](void *it) { delete (Call *)it; }, call.release()) ? EXECUTION_FAILED : SUCCESS;
}
