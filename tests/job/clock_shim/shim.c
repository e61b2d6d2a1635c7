// Preloaded into a process it shifts CLOCK_REALTIME and CLOCK_MONOTONIC, as a file says that a test
// may change at any time, and gives the machine another boot id. Other clocks tell the truth.
//
// CLOCK_SHIM: the file, four integers of 64 bits (`struct control`).
// CLOCK_SHIM_BOOT_ID: a file that is read for /proc/sys/kernel/random/boot_id.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define SECOND 1000000000LL

struct control {
    int64_t realtime, monotonic;  // ns that each clock is ahead
    int64_t drift;                // ns that both gain in a millisecond
    int64_t origin;               // of the drift, by the true CLOCK_MONOTONIC
};

static volatile struct control *control;

// The function that this one stands before; with the version that programs of today are linked to.
#define REAL(name) ((__typeof__(&name))real(#name))

static void *real(const char *name)
{
    void *found = dlvsym(RTLD_NEXT, name, "GLIBC_2.3.2");
    return found ? found : dlsym(RTLD_NEXT, name);
}

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("CLOCK_SHIM");
    int fd = path ? REAL(open)(path, O_RDONLY) : -1;
    void *at = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *control, PROT_READ, MAP_SHARED, fd, 0);
    control = at == MAP_FAILED ? NULL : at;
}

static int64_t ahead(clockid_t id)
{
    struct timespec now;
    if (control == NULL || (id != CLOCK_REALTIME && id != CLOCK_MONOTONIC))
        return 0;
    REAL(clock_gettime)(CLOCK_MONOTONIC, &now);
    int64_t passed = now.tv_sec * SECOND + now.tv_nsec - control->origin;
    int64_t shift = id == CLOCK_REALTIME ? control->realtime : control->monotonic;
    return shift + passed * control->drift / 1000000;
}

static struct timespec later(const struct timespec *at, int64_t ns)
{
    int64_t sum = at->tv_sec * SECOND + at->tv_nsec + ns;
    return (struct timespec){sum / SECOND, sum % SECOND};
}

int clock_gettime(clockid_t id, struct timespec *at)
{
    int failed = REAL(clock_gettime)(id, at);
    if (!failed)
        *at = later(at, ahead(id));
    return failed;
}

// The kernel waits by the true clocks.

int clock_nanosleep(clockid_t id, int flags, const struct timespec *at, struct timespec *left)
{
    struct timespec end = flags & TIMER_ABSTIME ? later(at, -ahead(id)) : *at;
    return REAL(clock_nanosleep)(id, flags, &end, left);
}

int sem_timedwait(sem_t *sem, const struct timespec *at)
{
    struct timespec end = later(at, -ahead(CLOCK_REALTIME));
    return REAL(sem_timedwait)(sem, &end);
}

int sem_clockwait(sem_t *sem, clockid_t id, const struct timespec *at)
{
    struct timespec end = later(at, -ahead(id));
    return REAL(sem_clockwait)(sem, id, &end);
}

int pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *at)
{
    // No machine has been up for thirty years.
    clockid_t id = at->tv_sec > SECOND ? CLOCK_REALTIME : CLOCK_MONOTONIC;
    struct timespec end = later(at, -ahead(id));
    return REAL(pthread_cond_timedwait)(cond, mutex, &end);
}

int pthread_cond_clockwait(pthread_cond_t *cond, pthread_mutex_t *mutex, clockid_t id,
                           const struct timespec *at)
{
    struct timespec end = later(at, -ahead(id));
    return REAL(pthread_cond_clockwait)(cond, mutex, id, &end);
}

static const char *instead_of(const char *path)
{
    const char *other = getenv("CLOCK_SHIM_BOOT_ID");
    return other && !strcmp(path, "/proc/sys/kernel/random/boot_id") ? other : path;
}

#define OPEN(name)                                                     \
    int name(const char *path, int flags, ...)                         \
    {                                                                  \
        va_list rest;                                                  \
        va_start(rest, flags);                                         \
        int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, int) : 0; \
        va_end(rest);                                                  \
        return REAL(name)(instead_of(path), flags, mode);              \
    }

OPEN(open)
OPEN(open64)
