/* A Vulkan driver that is the one of $ANYGPU_TEST_DRIVER in all but one answer: it says that it has passed no conformance tests. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef void (*Function)(void);
typedef void (*Properties)(void *device, void *properties);

/* What chained structures of Vulkan begin with, and the two that have the version of the conformance tests. */
struct Chained {
    uint32_t type;
    struct Chained *next;
};
enum { VULKAN_1_2_PROPERTIES = 52, DRIVER_PROPERTIES = 1000196000 };
struct Driver {
    struct Chained chained;
    uint32_t id;
    char name[256], info[256];
    uint8_t conformance[4];
};

static Properties real_properties;

static void *real(const char *name) {
    void *driver = dlopen(getenv("ANYGPU_TEST_DRIVER"), RTLD_NOW | RTLD_LOCAL);
    return driver ? dlsym(driver, name) : NULL;
}

static void properties(void *device, void *answer) {
    real_properties(device, answer);
    for (struct Chained *at = answer; at; at = at->next)
        if (at->type == DRIVER_PROPERTIES || at->type == VULKAN_1_2_PROPERTIES)
            memset(((struct Driver *)at)->conformance, 0, 4);
}

static Function replaced(const char *name, Function function) {
    if (!function || strncmp(name, "vkGetPhysicalDeviceProperties2", 30)) return function;
    real_properties = (Properties)function;
    return (Function)properties;
}

Function vk_icdGetInstanceProcAddr(void *instance, const char *name) {
    Function (*get)(void *, const char *) = real("vk_icdGetInstanceProcAddr");
    return replaced(name, get(instance, name));
}

Function vk_icdGetPhysicalDeviceProcAddr(void *instance, const char *name) {
    Function (*get)(void *, const char *) = real("vk_icdGetPhysicalDeviceProcAddr");
    return replaced(name, get(instance, name));
}

int32_t vk_icdNegotiateLoaderICDInterfaceVersion(uint32_t *version) {
    int32_t (*negotiate)(uint32_t *) = real("vk_icdNegotiateLoaderICDInterfaceVersion");
    return negotiate(version);
}
