/* An NVML with two devices and a slice of a third; what it answers is told by the environment:
 *
 *   STUB_ERROR   "FUNCTION=CODE,FUNCTION=CODE": these functions answer with an error
 *   STUB_HANG    "FUNCTION": this function never returns
 *   STUB_LOG     a file that gets a line for each call
 *
 * Compiled with -DOLD it lacks what an older driver lacks, with -DNEW what a newer one does not
 * have any more.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6 };

struct device {
    const char *uuid;
    int is_slice;
    unsigned long long total, used, energy;
    unsigned int utilization, power, temperature;
};

static struct device devices[] = {
    {"GPU-aaaaaaaa-0000-0000-0000-000000000000", 0, 96ULL << 30, 36ULL << 30, 5000, 87, 650000, 61},
    {"GPU-bbbbbbbb-0000-0000-0000-000000000000", 0, 80ULL << 30, 8ULL << 30, 9000000000ULL, 3, 70000, 35},
    {"MIG-cccccccc-0000-0000-0000-000000000000", 1, 10ULL << 30, 1ULL << 30, 0, 0, 0, 0},
};

static int answer(const char *function) {
    const char *log = getenv("STUB_LOG"), *hang = getenv("STUB_HANG"), *errors = getenv("STUB_ERROR");
    if (log) {
        FILE *file = fopen(log, "a");
        fprintf(file, "%s\n", function);
        fclose(file);
    }
    if (hang && !strcmp(hang, function))
        for (;;) sleep(60);
    size_t length = strlen(function);
    for (const char *at = errors; at && *at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        if (!strncmp(at, function, length) && at[length] == '=') return atoi(at + length + 1);
    return SUCCESS;
}

#define ANSWER                          \
    int code = answer(__func__);        \
    if (code) return code
#define OF_A_WHOLE_DEVICE               \
    ANSWER;                             \
    if (device->is_slice) return NOT_SUPPORTED

int nvmlInitWithFlags(unsigned int flags) { ANSWER; return SUCCESS; }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return "stub"; }

int nvmlDeviceGetHandleByUUID(const char *uuid, struct device **device) {
    ANSWER;
    for (size_t i = 0; i < sizeof devices / sizeof *devices; i++)
        if (!strcmp(uuid, devices[i].uuid)) {
            *device = &devices[i];
            return SUCCESS;
        }
    return NOT_FOUND;
}

int nvmlDeviceGetMemoryInfo(struct device *device, unsigned long long *memory) {
    ANSWER;
    memory[0] = device->total;
    memory[1] = device->total - device->used;
    memory[2] = device->used;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(struct device *device, unsigned int *rates) {
    OF_A_WHOLE_DEVICE;
    rates[0] = device->utilization;
    rates[1] = 1;
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(struct device *device, unsigned int *milliwatts) {
    OF_A_WHOLE_DEVICE;
    *milliwatts = device->power;
    return SUCCESS;
}

#ifndef OLD
int nvmlDeviceGetTotalEnergyConsumption(struct device *device, unsigned long long *millijoules) {
    OF_A_WHOLE_DEVICE;
    *millijoules = device->energy;
    device->energy += 1000; /* a joule from each look to the next */
    return SUCCESS;
}
#endif

#ifdef NEW
struct temperature { unsigned int version; int sensor, value; };
int nvmlDeviceGetTemperatureV(struct device *device, struct temperature *asked) {
    OF_A_WHOLE_DEVICE;
    asked->value = device->temperature;
    return SUCCESS;
}
#else
int nvmlDeviceGetTemperature(struct device *device, int sensor, unsigned int *celsius) {
    OF_A_WHOLE_DEVICE;
    if (sensor != 0) return INVALID_ARGUMENT;
    *celsius = device->temperature;
    return SUCCESS;
}
#endif
