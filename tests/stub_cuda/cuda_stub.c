/* A libcuda.so.1 that runs nothing: it refuses what the driver of an H100 (sm_90) would refuse, and logs every module
 * load, tensor map and launch as a line of JSON to the file that $STUB_CUDA_LOG names.
 *
 * It holds only what Triton calls. What it refuses is logged first as {"event": "rule", ...}, then returned as an error.
 */
#include "cuda.h"
#include <elf.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SHARED_DEFAULT = 49152,        /* of a block, without asking for more */
    SHARED_MOST = 232448,          /* of a block, opted in */
    REGISTERS = 65536,             /* of an SM */
    REGISTERS_AT_ONCE = 256,       /* a warp gets them in pieces of this many */
    THREADS_MOST = 1024,           /* of a block */
    GRID_YZ_MOST = 65535,
    BOX_MOST = 256,
    TMA_ALIGNMENT = 16,
};
static const unsigned long long GRID_MOST = 2147483647ull;
static const unsigned long long DIM_MOST = 1ull << 32;
static const unsigned long long STRIDE_END = 1ull << 40;

typedef struct {
    const char *name;
    int registers;
    int dynamic_shared; /* what cuFuncSetAttribute allowed */
} Kernel;

static int capturing = 0;

static void say(const char *format, ...) {
    static FILE *file;
    if (!file) {
        const char *path = getenv("STUB_CUDA_LOG");
        file = path ? fopen(path, "a") : stderr;
        setvbuf(file, NULL, _IOLBF, 0);
    }
    va_list values;
    va_start(values, format);
    vfprintf(file, format, values);
    va_end(values);
    fputc('\n', file);
}

static CUresult refuse(CUresult code, const char *format, ...) {
    char text[256];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    say("{\"event\": \"rule\", \"rule\": \"%s\"}", text);
    return code;
}

/* Python says when a stream is capturing: there is no stream that could. */
void stub_set_capturing(int on) { capturing = on; }

/* ---- the device ---- */

CUresult cuInit(unsigned flags) { return CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int *version) { *version = 13000; return CUDA_SUCCESS; }
CUresult cuDeviceGet(CUdevice *device, int index) { *device = index; return CUDA_SUCCESS; }
CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
    switch (attribute) {
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = SHARED_MOST; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: *value = SHARED_DEFAULT; break;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: *value = SHARED_MOST + 1024; break;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK: *value = REGISTERS; break;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 132; break;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = 32; break;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: *value = 1980000; break;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: *value = 2619000; break;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: *value = 5120; break;
    default: *value = 0;
    }
    return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult error, const char **text) {
    *text = error == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED ? "operation not permitted when stream is capturing (stub)"
          : error == CUDA_ERROR_INVALID_VALUE              ? "invalid argument (stub)"
          : error == CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES    ? "too many resources requested for launch (stub)"
                                                           : "error (stub)";
    return CUDA_SUCCESS;
}

/* ---- contexts and streams ---- */

CUresult cuCtxGetCurrent(CUcontext *context) { *context = (CUcontext)1; return CUDA_SUCCESS; }
CUresult cuCtxSetCurrent(CUcontext context) { return CUDA_SUCCESS; }
CUresult cuCtxGetDevice(CUdevice *device) { *device = 0; return CUDA_SUCCESS; }
CUresult cuCtxGetLimit(size_t *value, CUlimit limit) { *value = 0; return CUDA_SUCCESS; }
CUresult cuCtxSetLimit(CUlimit limit, size_t value) { return CUDA_SUCCESS; }
CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) { *context = (CUcontext)1; return CUDA_SUCCESS; }
CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
    *status = capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

/* ---- memory ---- */

CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr pointer) {
    *(CUdeviceptr *)value = pointer;
    return CUDA_SUCCESS;
}
CUresult cuMemAlloc(CUdeviceptr *pointer, size_t bytes) {
    static CUdeviceptr next = 0x600000000000ull;
    if (capturing)
        return refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "allocation of %zu bytes while capturing", bytes);
    *pointer = next;
    next += (bytes + 511) / 512 * 512;
    return CUDA_SUCCESS;
}

/* ---- modules and functions ---- */

static const Elf64_Shdr *section(const unsigned char *image, const char *wanted) {
    const Elf64_Ehdr *elf = (const Elf64_Ehdr *)image;
    const Elf64_Shdr *sections = (const Elf64_Shdr *)(image + elf->e_shoff);
    const char *names = (const char *)image + sections[elf->e_shstrndx].sh_offset;
    for (int i = 0; i < elf->e_shnum; i++)
        if (!strcmp(names + sections[i].sh_name, wanted))
            return sections + i;
    return NULL;
}
/* Registers of a kernel: .nv.info is a list of (format, attribute, length, values); attribute 0x2f is a pair of a
 * symbol and its registers. Only format 4 has values behind its four bytes. */
static int registers_of(const unsigned char *image, const char *kernel) {
    enum { WITH_VALUES = 4, REGISTER_COUNT = 0x2f };
    const Elf64_Shdr *info = section(image, ".nv.info"), *symbols = section(image, ".symtab");
    const Elf64_Shdr *strings = section(image, ".strtab");
    if (!info || !symbols || !strings)
        return 0;
    const Elf64_Sym *symbol = (const Elf64_Sym *)(image + symbols->sh_offset);
    const unsigned char *at = image + info->sh_offset, *end = at + info->sh_size;
    while (at + 4 <= end) {
        unsigned length = at[2] | at[3] << 8;
        const unsigned *values = (const unsigned *)(at + 4);
        const char *name = (const char *)image + strings->sh_offset;
        if (at[0] == WITH_VALUES && at[1] == REGISTER_COUNT && !strcmp(name + symbol[values[0]].st_name, kernel))
            return (int)values[1];
        at += 4 + (at[0] == WITH_VALUES ? length : 0);
    }
    return 0;
}
CUresult cuModuleLoadData(CUmodule *module, const void *image) {
    say("{\"event\": \"load\", \"capturing\": %d}", capturing);
    if (memcmp(image, ELFMAG, SELFMAG))
        return refuse(CUDA_ERROR_INVALID_IMAGE, "module is no cubin");
    if (capturing)
        return refuse(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "module load while capturing");
    *module = (CUmodule)image;
    return CUDA_SUCCESS;
}
CUresult cuModuleUnload(CUmodule module) { return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
    Kernel *kernel = malloc(sizeof *kernel);
    kernel->name = strdup(name);
    kernel->registers = registers_of((const unsigned char *)module, name);
    kernel->dynamic_shared = SHARED_DEFAULT;
    *function = (CUfunction)kernel;
    return CUDA_SUCCESS;
}
CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
    const Kernel *kernel = (const Kernel *)function;
    *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? THREADS_MOST
           : attribute == CU_FUNC_ATTRIBUTE_NUM_REGS              ? kernel->registers
                                                                  : 0;
    return CUDA_SUCCESS;
}
CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
    if (attribute != CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES)
        return CUDA_SUCCESS;
    if (value > SHARED_MOST)
        return refuse(CUDA_ERROR_INVALID_VALUE, "shared memory of %d bytes, at most %d", value, SHARED_MOST);
    ((Kernel *)function)->dynamic_shared = value;
    return CUDA_SUCCESS;
}
CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config) { return CUDA_SUCCESS; }
CUresult cuOccupancyMaxActiveClusters(int *count, CUfunction function, const CUlaunchConfig *config) {
    *count = 132;
    return CUDA_SUCCESS;
}

/* ---- tensor maps ---- */

static void say_list(char *text, size_t room, const char *key, const unsigned long long *values, unsigned count) {
    size_t used = strlen(text);
    used += snprintf(text + used, room - used, ", \"%s\": [", key);
    for (unsigned i = 0; i < count; i++)
        used += snprintf(text + used, room - used, "%s%llu", i ? ", " : "", values[i]);
    snprintf(text + used, room - used, "]");
}
CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *base,
                                const cuuint64_t *dims, const cuuint64_t *strides, const cuuint32_t *box,
                                const cuuint32_t *element_strides, CUtensorMapInterleave interleave,
                                CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                CUtensorMapFloatOOBfill fill) {
    static const unsigned sizes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
    static const unsigned spans[] = {1u << 30, 32, 64, 128, 128, 128, 128}; /* by swizzle; none has no span */
    unsigned long long dim[5], stride[5], side[5];
    CUresult result = CUDA_SUCCESS;
    if (rank < 1 || rank > 5 || type >= sizeof sizes / sizeof *sizes || swizzle >= sizeof spans / sizeof *spans)
        return refuse(CUDA_ERROR_INVALID_VALUE, "tensor map of rank %u, type %d, swizzle %d", rank, type, swizzle);
    for (unsigned i = 0; i < rank; i++) {
        dim[i] = dims[i];
        side[i] = box[i];
        stride[i] = i + 1 < rank ? strides[i] : 0;
    }
    char text[1024];
    snprintf(text, sizeof text, "{\"event\": \"map\", \"element_bytes\": %u, \"swizzle\": %d", sizes[type], swizzle);
    say_list(text, sizeof text, "dims", dim, rank);
    say_list(text, sizeof text, "strides", stride, rank - 1);
    say_list(text, sizeof text, "box", side, rank);
    say("%s}", text);

#define RULE(broken, ...) if (broken) result = refuse(CUDA_ERROR_INVALID_VALUE, __VA_ARGS__)
    unsigned long long inner = side[0] * sizes[type];
    RULE((size_t)base % TMA_ALIGNMENT, "tensor map base is not 16-byte aligned");
    RULE(inner % TMA_ALIGNMENT, "tensor map inner box of %llu bytes is not a multiple of 16", inner);
    RULE(inner > spans[swizzle], "tensor map inner box of %llu bytes is wider than the swizzle span", inner);
    for (unsigned i = 0; i < rank; i++) {
        RULE(!side[i] || side[i] > BOX_MOST, "tensor map box side of %llu is not in 1..256", side[i]);
        RULE(!dim[i] || dim[i] > DIM_MOST, "tensor map dimension of %llu is not in 1..2^32", dim[i]);
        RULE(stride[i] % TMA_ALIGNMENT, "tensor map stride of %llu bytes is not a multiple of 16", stride[i]);
        RULE(stride[i] >= STRIDE_END, "tensor map stride of %llu bytes is not under 2^40", stride[i]);
    }
#undef RULE
    return result;
}

/* ---- launches ---- */

static int has_attribute(const CUlaunchConfig *config, CUlaunchAttributeID id) {
    for (unsigned i = 0; i < config->numAttrs; i++)
        if (config->attrs[i].id == id)
            return 1;
    return 0;
}
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra) {
    const Kernel *kernel = (const Kernel *)function;
    unsigned long long x = config->gridDimX, y = config->gridDimY, z = config->gridDimZ;
    unsigned threads = config->blockDimX * config->blockDimY * config->blockDimZ;
    unsigned warps = (threads + 31) / 32;
    unsigned per_warp = (kernel->registers * 32 + REGISTERS_AT_ONCE - 1) / REGISTERS_AT_ONCE * REGISTERS_AT_ONCE;
    CUresult result = CUDA_SUCCESS;
    say("{\"event\": \"launch\", \"kernel\": \"%s\", \"grid\": [%llu, %llu, %llu], \"block\": %u, \"shared_bytes\": %u, "
        "\"registers\": %d, \"attributes\": %u, \"pdl\": %s, \"capturing\": %d}",
        kernel->name, x, y, z, threads, config->sharedMemBytes, kernel->registers, config->numAttrs,
        has_attribute(config, CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) ? "true" : "false", capturing);

#define RULE(broken, code, ...) if (broken) result = refuse(code, __VA_ARGS__)
    RULE(x > GRID_MOST || y > GRID_YZ_MOST || z > GRID_YZ_MOST, CUDA_ERROR_INVALID_VALUE,
         "grid of %llu x %llu x %llu, at most 2147483647 x 65535 x 65535", x, y, z);
    RULE(x * y * z > GRID_MOST, CUDA_ERROR_INVALID_VALUE, "grid of %llu programs, the launcher counts to 2^31", x * y * z);
    RULE(threads > THREADS_MOST, CUDA_ERROR_INVALID_VALUE, "block of %u threads, at most %d", threads, THREADS_MOST);
    RULE((int)config->sharedMemBytes > kernel->dynamic_shared, CUDA_ERROR_INVALID_VALUE,
         "shared memory of %u bytes, %d were asked for", config->sharedMemBytes, kernel->dynamic_shared);
    RULE(warps * per_warp > REGISTERS, CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES,
         "%d registers x %u threads, an SM has %d", kernel->registers, threads, REGISTERS);
#undef RULE
    return result;
}
