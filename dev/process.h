// process.h - what surrounds the process, and what that allows it: processor time and memory.
//
// Containers, schedulers and shells give a process less than the machine has. The kernel says how much in files, which
// are read here. `root` is put before the paths of control groups, so that tests can show other machines; "" is this
// one.
#ifndef PROCESS_H
#define PROCESS_H

#include <ctype.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "error.h"
#include "number.h"

// ---------------------------------------------------------------------------------------------------------------
// Control groups

// Opens root/path to be read; NULL if it can't be.
static inline FILE *process_open(const char *root, const char *path) {
    char whole[8192];
    int n = snprintf(whole, sizeof(whole), "%s%s", root, path);
    return n > 0 && (size_t)n < sizeof(whole) ? fopen(whole, "re") : NULL;
}

// The k-th word (from 0) of a line of /proc, its octal escapes decoded, to `word` (size); false if there is none.
static inline bool process_word(const char *line, int k, char *word, size_t size) {
    while (k-- > 0) {
        line += strcspn(line, " \n");
        line += strspn(line, " ");
    }
    size_t n = 0;
    for (; *line && *line != ' ' && *line != '\n' && n + 1 < size; n++) {
        if (line[0] == '\\' && isdigit((unsigned char)line[1]) && line[2] && line[3]) {
            word[n] = (char)(64 * (line[1] - '0') + 8 * (line[2] - '0') + (line[3] - '0'));
            line += 4;
        } else {
            word[n] = *line++;
        }
    }
    word[n] = 0;
    return n > 0;
}

// Whether `name` is one of the words of `list`, which commas separate.
static inline bool process_listed(const char *list, const char *name) {
    const size_t length = strlen(name);
    for (; *list; list += strcspn(list, ","), list += *list == ',') {
        if (strncmp(list, name, length) == 0 && (list[length] == ',' || list[length] == 0)) return true;
    }
    return false;
}

// The group of this process in a hierarchy, as the hierarchy's own root sees it, to `group` (size). controller: of a
// hierarchy of version 1; NULL: version 2. False if it is in none.
static inline bool process_group(const char *root, const char *controller, char *group, size_t size) {
    FILE *file = process_open(root, "/proc/self/cgroup");
    char *line = NULL;
    size_t room = 0;
    bool found = false;
    while (file && !found && getline(&line, &room, file) > 0) {
        char *list = strchr(line, ':'), *path = list ? strchr(list + 1, ':') : NULL;  // "4:cpu,cpuacct:/a/b"
        if (!path) continue;
        *path++ = 0;
        path[strcspn(path, "\n")] = 0;
        found = controller ? process_listed(list + 1, controller) : list[1] == 0 && strncmp(line, "0:", 2) == 0;
        if (found) snprintf(group, size, "%s", path);
    }
    free(line);
    if (file) fclose(file);
    return found;
}

// visit(root, folder, argument) for the folder of this process's control group and those of its parents, as far up as
// they are mounted here, in every mounted hierarchy that may have this controller ("cpu", "memory", ...).
static inline void process_visit_groups(const char *root, const char *controller,
                                        void (*visit)(const char *root, const char *folder, void *argument),
                                        void *argument) {
    enum { NAME = 4096 };
    FILE *file = process_open(root, "/proc/self/mountinfo");
    char *line = NULL, type[64], options[512];
    char *mounted = (char *)malloc(NAME), *top = (char *)malloc(NAME), *group = (char *)malloc(NAME);
    char *folder = (char *)malloc(2 * NAME);
    if (!mounted || !top || !group || !folder) die("out of memory at the start");
    size_t room = 0;
    while (file && getline(&line, &room, file) > 0) {
        const char *rest = strstr(line, " - ");  // "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu"
        if (!rest || !process_word(rest + 3, 0, type, sizeof(type))) continue;
        const bool v1 = strcmp(type, "cgroup") == 0, v2 = strcmp(type, "cgroup2") == 0;
        if (!v1 && !v2) continue;
        const bool optioned = process_word(rest + 3, 2, options, sizeof(options));
        if (v1 && !(optioned && process_listed(options, controller))) continue;
        if (!process_word(line, 3, top, NAME) || !process_word(line, 4, mounted, NAME)) continue;
        if (!process_group(root, v1 ? controller : NULL, group, NAME)) continue;
        // What is mounted may be a part of the hierarchy: `top` and what is below.
        const size_t above = strcmp(top, "/") == 0 ? 0 : strlen(top);
        const bool below = strncmp(group, top, above) == 0 && (group[above] == '/' || group[above] == 0);
        const char *inner = below && strncmp(group + above, "/..", 3) != 0 ? group + above : "";
        snprintf(folder, 2 * NAME, "%s%s", mounted, inner);
        for (size_t n = strlen(folder);; folder[n] = 0) {
            while (n > strlen(mounted) && folder[n - 1] == '/') folder[--n] = 0;
            visit(root, folder, argument);
            if (n <= strlen(mounted)) break;
            while (folder[n - 1] != '/') n--;
        }
    }
    free(mounted);
    free(top);
    free(group);
    free(folder);
    free(line);
    if (file) fclose(file);
}

// Up to two numbers at the beginning of root/folder/name; returns how many there are ("max" is none).
static inline int process_numbers(const char *root, const char *folder, const char *name, double *a, double *b) {
    char path[8192 + 64];
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    FILE *file = process_open(root, path);
    if (!file) return 0;
    long long first = 0, second = 0;
    const int n = fscanf(file, "%lld %lld", &first, &second);
    fclose(file);
    *a = (double)first;
    *b = (double)second;
    return n > 0 ? n : 0;
}

static inline void process_visit_quota(const char *root, const char *folder, void *argument) {
    double *least = (double *)argument, quota = 0, period = 0, unused;
    bool limited = process_numbers(root, folder, "cpu.max", &quota, &period) == 2;
    if (!limited) {
        limited = process_numbers(root, folder, "cpu.cfs_quota_us", &quota, &unused) == 1 &&
                  process_numbers(root, folder, "cpu.cfs_period_us", &period, &unused) == 1;
    }
    if (limited && quota > 0 && period > 0 && (*least == 0 || quota / period < *least)) *least = quota / period;
}

// How many processors' time control groups allow this process, such as 0.5; 0 if they set no limit. The least over its
// group and the parents, of both versions.
static inline double process_quota(const char *root) {
    double least = 0;
    process_visit_groups(root, "cpu", process_visit_quota, &least);
    return least;
}

// ---------------------------------------------------------------------------------------------------------------
// Memory

// Value in bytes of a "Name:   123 kB" line of a file in /proc, or 0 if there is none. No allocation.
static inline size_t process_bytes_of(const char *file, const char *name) {
    char text[4096];
    int fd = open(file, O_RDONLY);
    if (fd < 0) return 0;
    ssize_t n = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (n <= 0) return 0;
    text[n] = 0;
    const char *line = strstr(text, name);
    return line ? (size_t)strtoull(line + strlen(name), NULL, 10) * 1024 : 0;
}

// Anonymous memory of this process that is in RAM now, bytes.
static inline size_t process_rss_anonymous(void) { return process_bytes_of("/proc/self/status", "RssAnon:"); }

// Memory that a new program could use now without swapping, bytes: of the machine, or of this process's control
// group (version 2) if that allows less.
static inline size_t process_memory_available(void) {
    size_t available = process_bytes_of("/proc/meminfo", "MemAvailable:");
    char text[64];
    int fd = open("/sys/fs/cgroup/memory.max", O_RDONLY);
    if (fd < 0) return available;
    ssize_t n = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (n <= 0 || text[0] < '0' || text[0] > '9') return available;
    text[n] = 0;
    return size_min(available, (size_t)strtoull(text, NULL, 10));
}

#endif
