/* Writes and syncs that fail, as those of a dying disk do: loaded into a service's processes (LD_PRELOAD).

   FAULT_DISK names a file with one figure: of so many calls about one fails with EIO; 0, or no file, for
   none. Only what lies below FAULT_DISK_FOLDER is hit. Both are read at each call, so that a test changes
   them while the service runs. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static int one_in(void) {
    const char *path = getenv("FAULT_DISK");
    char text[16] = "";
    struct stat found;
    /* Empty for as long as nothing is to fail: a look at it is all that costs then. */
    if (path == NULL || stat(path, &found) != 0 || found.st_size == 0)
        return 0;
    int fd = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t size = syscall(SYS_read, fd, text, sizeof text - 1);
    syscall(SYS_close, fd);
    return size > 0 ? atoi(text) : 0;
}

static int fails(int fd) {
    static __thread unsigned seed;
    char link[64], path[PATH_MAX];
    const char *folder = getenv("FAULT_DISK_FOLDER");
    int kept = errno, chance = one_in();
    if (chance > 0 && folder != NULL) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t size = readlink(link, path, sizeof path - 1);
        if (seed == 0)
            seed = (unsigned)getpid() * 2654435761u ^ (unsigned)(size_t)&seed;
        if (size > 0 && !strncmp(path, folder, strlen(folder)) && rand_r(&seed) % chance == 0) {
            errno = EIO;
            return 1;
        }
    }
    errno = kept;
    return 0;
}

#define REAL(name) (real == NULL ? (real = dlsym(RTLD_NEXT, name)) : real)

int fsync(int fd) {
    static int (*real)(int);
    return fails(fd) ? -1 : (REAL("fsync"), real(fd));
}

int fdatasync(int fd) {
    static int (*real)(int);
    return fails(fd) ? -1 : (REAL("fdatasync"), real(fd));
}

ssize_t write(int fd, const void *bytes, size_t size) {
    static ssize_t (*real)(int, const void *, size_t);
    return fails(fd) ? -1 : (REAL("write"), real(fd, bytes, size));
}

ssize_t pwrite64(int fd, const void *bytes, size_t size, off64_t at) {
    static ssize_t (*real)(int, const void *, size_t, off64_t);
    return fails(fd) ? -1 : (REAL("pwrite64"), real(fd, bytes, size, at));
}

ssize_t pwrite(int fd, const void *bytes, size_t size, off_t at) {
    static ssize_t (*real)(int, const void *, size_t, off_t);
    return fails(fd) ? -1 : (REAL("pwrite"), real(fd, bytes, size, at));
}
