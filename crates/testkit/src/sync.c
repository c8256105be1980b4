// Holds or fails fdatasync in a process that loads this before its C library, for files of one name,
// as a mapped file says: word 0 is 0 (as usual), 1 (does not return until this changes) or an errno
// above that; word 1 counts the calls that are held.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static volatile int *state;

__attribute__((constructor)) static void start(void) {
    const char *path = getenv("TENURE_FALSE_SYNC");
    int file = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *map = mmap(0, 2 * sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    close(file);
    if (map != MAP_FAILED) state = map;
}

static int is_meant(int file) {
    const char *name = getenv("TENURE_FALSE_SYNC_OF");
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (!name || length < 0) return 0;
    path[length] = 0;
    const char *base = strrchr(path, '/');
    return base && strcmp(base + 1, name) == 0;
}

int fdatasync(int file) {
    if (state && is_meant(file)) {
        __atomic_add_fetch(&state[1], 1, __ATOMIC_SEQ_CST);
        while (__atomic_load_n(&state[0], __ATOMIC_SEQ_CST) == 1) usleep(1000);
        __atomic_sub_fetch(&state[1], 1, __ATOMIC_SEQ_CST);
        int fault = __atomic_load_n(&state[0], __ATOMIC_SEQ_CST);
        if (fault > 1) {
            errno = fault;
            return -1;
        }
    }
    return (int)syscall(SYS_fdatasync, file);
}
