// threads.h - the team of OpenMP threads that computes on the CPU: how many, that they can be had, and that they stay.
//
// The math library's primitives are made for a number of threads: with a smaller team, parts of a product would stay as
// they were. So the number is what a parallel region really has, found before the first primitive and checked again at
// every step.
//
//     processors = those that this process may run on, shared with the ranks that may run on them, too
//     threads    = OMP_NUM_THREADS, or min(processors, control group's quota of processor time, rounded up)
//                  or fewer, if OpenMP gives fewer (OMP_THREAD_LIMIT, ...)
//
// Threads that wait for each other spin for a moment, then sleep. OpenMP's own moment is so long (milliseconds) that
// beside another busy program, or within a quota, the spinning takes the time that the others need to arrive.
#ifndef THREADS_H
#define THREADS_H

#include <limits.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "process.h"

// The most threads, and what each needs of its stack, bytes: several times what a run of oneDNN lives with (32 KiB) and
// what our own functions have (64 KiB in checkpoint_check, 25 KiB in kernels: gcc -fstack-usage).
enum { THREADS_MOST = 4096, THREADS_STACK = 256 << 10 };

// What says how long a waiting thread looks before it sleeps: turns of libgomp's loop, milliseconds of clang's library;
// see dev/PERFORMANCE.md.
#ifdef __clang__
#define THREADS_WAIT_NAME "KMP_BLOCKTIME"
#define THREADS_WAIT_VALUE "0"
#else
#define THREADS_WAIT_NAME "GOMP_SPINCOUNT"
#define THREADS_WAIT_VALUE "500"
#endif

// How many threads a parallel region has.
static inline int threads_team(void) {
    int n = 1;
#ifdef _OPENMP
#pragma omp parallel
    {
#pragma omp master
        n = omp_get_num_threads();
    }
#endif
    return n;
}

// ---------------------------------------------------------------------------------------------------------------
// Waiting

// The first of these variables (NULL ends them) that is set, as "NAME=VALUE" in `text` (size); "" if none is.
static inline const char *threads_setting(const char *const *names, char *text, size_t size) {
    text[0] = 0;
    for (; *names && !text[0]; names++) {
        if (getenv(*names)) snprintf(text, size, "%s=%s", *names, getenv(*names));
    }
    return text;
}

static const char *const THREADS_WAIT[] = {THREADS_WAIT_NAME, "OMP_WAIT_POLICY", NULL};

#ifdef _OPENMP
// The file that this function was loaded from, to `path` (PATH_MAX); "" if the kernel does not say.
static inline void threads_own_file(char *path) {
    FILE *maps = fopen("/proc/self/maps", "re");
    const uintptr_t here = (uintptr_t)threads_own_file;
    char line[PATH_MAX + 128];
    path[0] = 0;
    while (maps && fgets(line, sizeof(line), maps)) {
        unsigned long long first, end;
        const char *name = strchr(line, '/');
        if (sscanf(line, "%llx-%llx", &first, &end) != 2 || here < first || here >= end || !name) continue;
        snprintf(path, PATH_MAX, "%.*s", (int)strcspn(name, "\n"), name);
    }
    if (maps) fclose(maps);
}

// The first call of a program. OpenMP reads how threads wait before main(), so the program starts itself again with the
// setting, once. Not where the user has made the setting, or binds threads to processors: OpenMP has then bound this
// one already, and the program would find itself on a part of the machine. Nor where what the kernel has started is not
// this program but what runs it (a loader, valgrind). Does nothing where it can't be done.
static inline void threads_give_way(char **argv) {
    static const char *const bound[] = {"OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY", NULL};
    static const char again[] = "TRAIN_GPT_STARTED_AGAIN";
    char text[128], path[PATH_MAX], own[PATH_MAX];
    const char *preloaded = getenv("LD_PRELOAD");
    const bool second = getenv(again) != NULL;
    unsetenv(again);
    if (second || (preloaded && strstr(preloaded, "vgpreload"))) return;
    if (threads_setting(THREADS_WAIT, text, sizeof(text))[0] || threads_setting(bound, text, sizeof(text))[0]) return;
    const ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 1);
    threads_own_file(own);
    if (n <= 0 || (size_t)n != strlen(own) || memcmp(path, own, (size_t)n) != 0) return;
    if (setenv(THREADS_WAIT_NAME, THREADS_WAIT_VALUE, 0) != 0 || setenv(again, "1", 1) != 0) return;
    path[n] = 0;
    execv(path, argv);
    unsetenv(THREADS_WAIT_NAME);  // it was not read
    unsetenv(again);
}
#else
static inline void threads_give_way(char **argv) { (void)argv; }
#endif

// ---------------------------------------------------------------------------------------------------------------
// Whether the threads can be had

#ifdef _OPENMP
// Touches so much of the stack below here, from the top.
static inline void threads_touch_stack(void) {
    char stack[THREADS_STACK];
    volatile char *bytes = stack;
    for (size_t i = THREADS_STACK; i > 0; i -= 1024) bytes[i - 1] = 0;
}

// The child's half: OpenMP's words go to `words` (a pipe), and a zero byte behind them if all went well.
static inline void threads_try_child(int n, int words) {
    struct rlimit no_core = {0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    signal(SIGSEGV, SIG_DFL);
    signal(SIGALRM, SIG_DFL);
    alarm(60);
    dup2(words, STDERR_FILENO);
#pragma omp parallel num_threads(n)
    threads_touch_stack();
    _exit(write(words, "", 1) == 1 ? 0 : 1);
}

// Settings and limits that may be why threads can't be had, those that are set, as "A=1, B=2".
static inline void threads_limits(char *text, size_t size) {
    static const char *const names[] = {"OMP_NUM_THREADS", "OMP_STACKSIZE", "GOMP_STACKSIZE"};
    static const struct {
        int resource;
        const char *name;
        rlim_t unit;
    } limits[] = {{RLIMIT_STACK, "ulimit -s", 1024}, {RLIMIT_NPROC, "ulimit -u", 1}, {RLIMIT_AS, "ulimit -v", 1024}};
    size_t n = 0;
    text[0] = 0;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && n < size; i++) {
        const char *value = getenv(names[i]);
        if (value) n += (size_t)snprintf(text + n, size - n, "%s%s=%s", n ? ", " : "", names[i], value);
    }
    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]) && n < size; i++) {
        struct rlimit limit;
        if (getrlimit(limits[i].resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) continue;
        n += (size_t)snprintf(text + n, size - n, "%s%s %llu", n ? ", " : "", limits[i].name,
                              (unsigned long long)(limit.rlim_cur / limits[i].unit));
    }
}

// Reads all that comes; the last bytes of it stay in `words` (size), without spaces at the ends, as one line. True if
// the very last byte was a zero.
static inline bool threads_read_words(int from, char *words, size_t size) {
    size_t length = 0;
    for (;;) {
        if (length == size) memmove(words, words + size / 2, length -= size / 2);
        const ssize_t got = read(from, words + length, size - length);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        length += (size_t)got;
    }
    const bool whole = length > 0 && words[length - 1] == 0;
    length = size_min(length, size - 1);
    while (length > 0 && (isspace((unsigned char)words[length - 1]) || words[length - 1] == 0)) length--;
    words[length] = 0;
    for (size_t i = 0; i < length; i++) words[i] = words[i] == '\n' ? ' ' : words[i];
    memmove(words, words + strspn(words, " "), length + 1 - strspn(words, " "));
    return whole;
}

// A child process starts a team of n and uses as much of every stack as a run may: what OpenMP or the kernel would end
// the run for later ends the child. Dies with one message.
static inline void threads_try(int n) {
    int ends[2], status = 0;
    char words[1024], limits[512];
    threads_limits(limits, sizeof(limits));
    fflush(NULL);
    if (pipe(ends) != 0) die("can't open a pipe: %s", error_text());
    const pid_t child = fork();
    if (child < 0) {
        die("can't start a process to try %d threads in: %s. Raise the limits on processes (set here: %s; or a control "
            "group's)", n, error_text(), limits);
    }
    if (child == 0) threads_try_child(n, ends[1]);
    close(ends[1]);
    const bool good = threads_read_words(ends[0], words, sizeof(words));
    close(ends[0]);
    pid_t ended;
    do ended = waitpid(child, &status, 0);
    while (ended < 0 && errno == EINTR);
    if (good) return;  // also where SIGCHLD is ignored, and there is no status
    const int killed = ended == child && WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    if (killed == SIGSEGV || killed == SIGBUS) {
        die("a thread's stack is too small: %d KiB are needed. Raise it (set here: %s)", THREADS_STACK >> 10, limits);
    }
    die("%d threads can't be had: %s%s%s. Take fewer (OMP_NUM_THREADS), or raise the limits (set here: %s; or a "
        "control group's)", n, words, killed && words[0] ? "; " : "",
        killed == SIGALRM   ? "they did not start within a minute"
        : killed == SIGKILL ? "the kernel killed them, maybe for their memory"
        : killed            ? strsignal(killed)
        : words[0]          ? ""
                            : "they ended without a word",
        limits);
}
#endif

// ---------------------------------------------------------------------------------------------------------------
// The team

// OMP_NUM_THREADS, if it is a number, or a list of them: what OpenMP has made of it; otherwise 0.
static inline int threads_asked(void) {
#ifdef _OPENMP
    const char *text = getenv("OMP_NUM_THREADS");
    char *end = NULL;
    const long n = text ? strtol(text, &end, 10) : 0;
    if (n > 0 && (*end == 0 || *end == ',' || isspace((unsigned char)*end))) return omp_get_max_threads();
#endif
    return 0;
}

// Threads for a rank that may run on so many processors, of which it has a part, with a quota of processor time (0:
// none) for all ranks of the machine. *limited: by the quota.
static inline int threads_choose(int processors, double part, double quota, int local_size, bool *limited) {
    const int here = (int)(processors * part + 1e-6), most = (int)fmin(ceil(quota), 1e6) / local_size;
    *limited = quota > 0 && most < here;
    const int n = *limited ? most : here;
    return n < 1 ? 1 : n > THREADS_MOST ? (int)THREADS_MOST : n;
}

// Adds words to a text of `size` bytes that ends at *length.
PRINTF_LIKE(4, 5)
static inline void threads_say(char *text, size_t size, size_t *length, const char *format, ...) {
    va_list words;
    va_start(words, format);
    const int n = vsnprintf(text + *length, size - *length, format, words);
    va_end(words);
    if (n > 0) *length = size_min(*length + (size_t)n, size - 1);
}

#ifdef _OPENMP
// A line for the banner: why the team has so many threads.
static inline void threads_explain(char *why, size_t size, int team, int chosen, double quota, int local_size) {
    const int processors = omp_get_num_procs();
    char setting[128];
    size_t n = 0;
    threads_say(why, size, &n, "%d: ", team);
    if (team < chosen && omp_get_thread_limit() == team) {
        threads_say(why, size, &n, "OpenMP gives no more, OMP_THREAD_LIMIT=%d", team);
    } else if (team < chosen) {
        threads_say(why, size, &n, "OpenMP gives no more of %d", chosen);
        if (omp_get_max_active_levels() == 0) threads_say(why, size, &n, ", OMP_MAX_ACTIVE_LEVELS=0");
    } else if (threads_asked()) {
        threads_say(why, size, &n, "OMP_NUM_THREADS");
    } else if (quota > 0) {
        threads_say(why, size, &n, "the control group's quota is %.2f processors", quota);
    } else {
        threads_say(why, size, &n, "one for each processor that it may use");
    }
    if (local_size > 1 && !threads_asked()) threads_say(why, size, &n, ", shared by %d ranks", local_size);
    if (team != processors) threads_say(why, size, &n, "; %d processor%s", processors, processors > 1 ? "s" : "");
    threads_setting(THREADS_WAIT, setting, sizeof(setting));
    if (team > 1) threads_say(why, size, &n, "; waiting by %s", setting[0] ? setting : "OpenMP's default");
}
#endif

// Settles the team: returns its number of threads, and in `why` (size) a line for the banner. part: of the processors
// that this rank may run on, at most 1; local_size: ranks on this machine, which share the control group's quota. Dies
// if the threads can't be had.
static inline int threads_open(double part, int local_size, char *why, size_t size) {
#ifdef _OPENMP
    static bool tried = false;  // a process tries once: OpenMP does not survive a fork once it has threads
    const double quota = process_quota("");
    bool limited;
    int chosen = threads_choose(omp_get_num_procs(), part, quota, local_size, &limited);
    if (threads_asked()) chosen = threads_asked();
    if (chosen > THREADS_MOST) die("OMP_NUM_THREADS=%d: at most %d threads", chosen, THREADS_MOST);
    omp_set_dynamic(0);
    if (!tried) threads_try(chosen);
    tried = true;
    omp_set_num_threads(chosen);
    const int team = threads_team();
    omp_set_num_threads(team);
    threads_explain(why, size, team, chosen, limited ? quota : 0, local_size);
    return team;
#else
    (void)part;
    (void)local_size;
    snprintf(why, size, "1: built without OpenMP");
    return 1;
#endif
}

// Dies if a parallel region has another number of threads than threads_open() found.
static inline void threads_check(int threads) {
    const int team = threads_team();
    if (team == threads) return;
    die("the run began with %d thread%s and OpenMP gives %d now: products made for the one are wrong with the other. "
        "Something in this process changes OpenMP's settings; go on from the last checkpoint", threads,
        threads > 1 ? "s" : "", team);
}

#endif
