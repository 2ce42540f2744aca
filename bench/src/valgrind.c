/* Starts quickack's workers under callgrind.
 *
 * The master executes /proc/self/exe, which is valgrind's own image where the master runs under it;
 * so the master runs as it is, with this loaded before the C library (LD_PRELOAD). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WORDS_MAX 64

int execvp(const char *file, char *const argv[]) {
    int (*real)(const char *, char *const[]) = dlsym(RTLD_NEXT, "execvp");
    const char *profile = getenv("CALLGRIND_PROFILE");
    if (strcmp(file, "/proc/self/exe") != 0 || profile == NULL)
        return real(file, argv);
    static char out[4200], image[4096];
    static char *words[WORDS_MAX];
    int count = 0;
    snprintf(out, sizeof out, "--callgrind-out-file=%s.%%p", profile);
    if (readlink("/proc/self/exe", image, sizeof image - 1) < 0)
        return -1;
    words[count++] = "valgrind";
    words[count++] = "--tool=callgrind";
    words[count++] = "--instr-atstart=no";
    words[count++] = out;
    words[count++] = image;
    for (int at = 1; argv[at] != NULL && count < WORDS_MAX - 1; at++)
        words[count++] = argv[at];
    unsetenv("LD_PRELOAD");
    return real("valgrind", words);
}
